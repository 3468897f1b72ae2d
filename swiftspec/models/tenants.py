"""Tenants of a model: fine-tunes and adapters of it that the same processes serve.

Adapters are of LoRA, as PEFT writes them: a folder with adapter_config.json and adapter_model.safetensors.
"""

import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.spec import ModelSpec

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_CONFIG: Final = "adapter_config.json"
_MOST_RANK: Final = 2**31  # far beyond the width of any model
# Values with which a field changes nothing. Other fields may be off only: PEFT's next release may add some.
_SUPPORTED: Final[dict[str, tuple[Any, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),  # others change the base's weights
}
_OFF: Final[tuple[Any, ...]] = (None, False, [], {})
# Read below, told by the weights' names, of training or of the file's origin (peft/tuners/lora/config.py of 0.21).
_HARMLESS: Final = frozenset(
    (
        *("r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "layers_to_transform"),
        *("layers_pattern", "lora_dropout", "eva_config", "qalora_group_size", "megatron_core", "inference_mode"),
        *("task_type", "auto_mapping", "base_model_name_or_path", "revision", "peft_version"),
    )
)


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter, and not a model."""
    return (directory / _CONFIG).is_file()


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """Low-rank adapter: W becomes W + scale B A, with A [rank, in] and B [out, rank]."""

    rank: int
    scale: float

    @classmethod
    def read(cls, directory: Path) -> "Adapter":
        """Read adapter_config.json. ValueError names the file and the field that is missing or unsupported."""
        path = directory / _CONFIG
        values = read_foreign_json(path)
        if not isinstance(values, dict):
            raise ValueError(f"{path}: expected an object, found {shown(values)}")
        for field, value in ({"peft_type": None} | values).items():
            supported = _SUPPORTED.get(field, _OFF)
            if field not in _HARMLESS and value not in supported:
                expected = shown(supported[0]) if field in _SUPPORTED else "null, false or empty, as in plain LoRA"
                raise ValueError(f"{path}: {field} is {shown(value)}; expected {expected}")
        rank, alpha = (_positive(values, field, path) for field in ("r", "lora_alpha"))
        if rank != int(rank) or rank > _MOST_RANK:
            raise ValueError(f"{path}: r is {shown(rank)}; expected a positive integer of at most {_MOST_RANK}")
        stabilised = values.get("use_rslora") or False
        if not isinstance(stabilised, bool):
            raise ValueError(f"{path}: use_rslora is {shown(stabilised)}; expected true or false")
        root = math.sqrt(rank) if stabilised else rank
        return cls(rank=int(rank), scale=alpha / root)


def _positive(values: dict[str, Any], field: str, path: Path) -> float:
    value = values.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"{path}: {field} is {shown(value)}; expected a positive number")
    return value


def tenant_spec(directory: Path, base: ModelSpec) -> ModelSpec:
    """Spec of a tenant of the model `base`: its own, or that model's if it is an adapter. ValueError if it is none."""
    if is_adapter(directory):
        Adapter.read(directory)
        return base
    spec = ModelSpec.from_directory(directory)
    check_same_shape(spec, base, directory)
    return spec


def check_same_shape(spec: ModelSpec, base: ModelSpec, directory: Path) -> None:
    """ValueError, naming the field, unless the model in a directory has the shape of `base`."""
    for field in dataclasses.fields(spec):
        own, expected = getattr(spec, field.name), getattr(base, field.name)
        if own != expected and field.name != "eos_token_ids":  # a fine-tune may have its own
            raise ValueError(
                f"{directory}: {field.name} is {shown(own)}; a tenant has that of the target, {shown(expected)}"
            )
