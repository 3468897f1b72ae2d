"""Rotary position embedding as a config.json has it: its base, how it is stretched, and the context that this gives."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from swiftspec.models.config_json import ConfigJson

USUAL_THETA: Final = 10000.0
_PLAIN: Final = ("default", "mrope")  # mrope: of images; text has the plain one
_KINDS: Final = ("linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
RUNNABLE_SCALINGS: Final = ("linear", "dynamic", "yarn", "llama3")  # that the engine computes
_SPELLINGS: Final = {"su": "longrope"}  # in Phi-3's first config.json
_ORIGINAL: Final = "original_max_position_embeddings"
_MOST_FACTORS: Final = 1024  # one for each pair of a head's values


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Stretching of the rotary wavelengths beyond the original training context.

    kind: linear, dynamic, yarn, llama3, longrope or proportional (of a part of the wavelengths, in Gemma 4).
    original_max_position: tokens of the original context; 0 if it is not stated.
    low_freq_factor, high_freq_factor: of llama3; 0 elsewhere.
    others: tuple of (str, tuple of float). Further numbers by their names, as stated, such as YaRN's beta_fast.
    """

    kind: str
    factor: float
    original_max_position: int = 0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    others: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def other(self, name: str) -> float | None:
        """One of the further numbers; None if it is not stated, or 0, which stands for that, too."""
        return dict(self.others).get(name, (0.0,))[0] or None

    def within(self, max_position: int) -> "RopeScaling":
        """The same with its original context known: the stated one, or the model's, which dynamic scaling goes by."""
        if self.kind == "dynamic" or (self.kind == "yarn" and not self.original_max_position):
            return replace(self, original_max_position=max_position)
        return self


def rope_fields(config: ConfigJson) -> tuple[str, ConfigJson]:
    """Name and fields of the object about positions: `rope_scaling` of transformers 4, or `rope_parameters` of 5.

    Of a file that has both the former counts, as for transformers.
    """
    field = "rope_scaling" if config.values.get("rope_scaling") else "rope_parameters"
    rope = config.values.get(field) or {}
    if isinstance(rope, dict) and "full_attention" in rope:  # by kind of layer
        field, rope = f"{field}.full_attention", rope["full_attention"]
    if not isinstance(rope, dict):
        raise config.fail(field, rope, "an object")
    return field, ConfigJson(config.directory, rope)


def read_rope(config: ConfigJson, usual_theta: float = USUAL_THETA) -> tuple[float, RopeScaling | None]:
    """Base and scaling. A null is a field left out."""
    field, rope = rope_fields(config)
    theta = rope.number("rope_theta", config.number("rope_theta", usual_theta))
    kind = next((rope.values[name] for name in ("rope_type", "type") if rope.values.get(name) is not None), "default")
    kind = _SPELLINGS.get(kind, kind) if isinstance(kind, str) else kind
    if kind in _PLAIN:
        return theta, None
    if kind not in _KINDS:
        raise config.fail(f"{field}.rope_type", kind, f"one of {', '.join((*_PLAIN, *_KINDS))}")
    factor = rope.number("factor", 1.0 if kind in ("longrope", "proportional") else None)
    if kind == "llama3":
        return theta, RopeScaling(
            kind=kind,
            factor=factor,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position=rope.integer("original_max_position_embeddings"),
        )
    outer = config if kind == "longrope" and config.values.get(_ORIGINAL) is not None else rope  # as of Phi-3
    original = outer.count(_ORIGINAL)
    return theta, RopeScaling(kind=kind, factor=factor, original_max_position=original, others=_others(rope.values))


def _others(rope: Mapping[str, Any]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Numbers of a scaling that have no field of their own."""
    known = ("rope_theta", "factor", "original_max_position_embeddings")
    found = ((name, value if isinstance(value, list) else [value]) for name, value in rope.items() if name not in known)
    return tuple(
        (name, tuple(map(float, numbers)))
        for name, numbers in found
        if 0 < len(numbers) <= _MOST_FACTORS and all(map(_is_number, numbers))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def longest_context(config: ConfigJson, scaling: RopeScaling | None, usual: int | None = None) -> int:
    """Tokens of the longest text that a model is for. Linear and dynamic factors, and YaRN's, multiply the original.

    As vLLM derives it: with llama3 and longrope, max_position_embeddings is the longer context already.
    """
    longest = config.integer("max_position_embeddings", usual)
    if scaling is None or scaling.kind not in ("linear", "dynamic", "yarn"):
        return longest
    original = scaling.original_max_position if scaling.kind == "yarn" else 0
    return int((original or longest) * scaling.factor)
