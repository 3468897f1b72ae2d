"""Shape of a draft that reads the target's hidden states: an EAGLE-3 head or a multi-token prediction (MTP) layer.

A feature is the residual stream of the target before one of its layers. Sources: EAGLE-3, arXiv 2503.01840, in its own
layout (config.json of a Llama model) and in that of `speculators`; MTP, DeepSeek-V3, arXiv 2412.19437.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.config_json import ConfigJson
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec

__all__ = ["HeadFormat", "HeadSpec", "check_equal", "head_format", "inflated_layers"]

_EAGLE3_NAMES = ("eagle3", "eagle-3")
_NUM_EAGLE3_LAYERS = 3
_MTP_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
# What a config.json may ask for and this version does not compute.
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "norm_output")


class HeadFormat(StrEnum):
    """Architecture of a head."""

    EAGLE3 = "eagle3"
    MTP = "mtp"


def head_format(values: Mapping[str, Any]) -> HeadFormat | None:
    """The head that a config.json describes; None for another model."""
    names = values.get("architectures")
    written = [*(names if isinstance(names, list) else []), values.get("speculators_model_type")]
    if any(isinstance(name, str) and mark in name.lower() for name in written for mark in _EAGLE3_NAMES):
        return HeadFormat.EAGLE3
    return HeadFormat.MTP if any(values.get(field) for field in _MTP_FIELDS) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """Shape of a head.

    Parameters
    ----------
    directory : Path
        Names the head in errors.
    format : HeadFormat
    layer : ModelSpec
        Its decoder layer; `num_layers` is 1.
    layer_index : int
        Of an MTP layer in its checkpoint: the number of the target's layers.
    feature_layers : tuple of int
        The target's layers whose inputs it reads; empty for those that EAGLE-3 reads if its config.json names none.
    target_hidden_size : int
        Width of the target's residual stream.
    draft_vocab_size : int
        Tokens that it can propose.
    norm_before_residual : bool
        Whether the normalised feature, rather than the feature itself, enters the head's residual stream.
    """

    directory: Path
    format: HeadFormat
    layer: ModelSpec
    layer_index: int
    feature_layers: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool

    @classmethod
    def from_directory(cls, directory: str | Path) -> HeadSpec:
        """Read config.json. ValueError names directory, field and value of what is missing or unsupported."""
        directory = Path(directory)
        spec = ModelSpec.from_directory(directory)
        spec.require_dense(directory)
        values = read_foreign_json(directory / "config.json")
        config, kind = ConfigJson(directory, values), head_format(values)
        if kind is None:
            expected = "that of an EAGLE-3 head"
            raise ValueError(
                f"{directory}: config.json architectures is {shown(values.get('architectures'))}; expected {expected}"
            )
        for field in _UNSUPPORTED:
            if values.get(field):
                raise ValueError(f"{directory}: config.json {field} is {shown(values[field])}; expected false")
        if kind is HeadFormat.EAGLE3 and spec.num_layers != 1:
            raise ValueError(f"{directory}: config.json num_hidden_layers is {spec.num_layers}; expected 1")
        return cls(
            directory=directory,
            format=kind,
            layer=spec.one_layer(),
            layer_index=spec.num_layers,
            feature_layers=_feature_layers(directory, values) if kind is HeadFormat.EAGLE3 else (spec.num_layers,),
            target_hidden_size=config.integer("target_hidden_size", spec.hidden_size),
            draft_vocab_size=config.integer("draft_vocab_size", spec.vocab_size),
            norm_before_residual=config.flag("norm_before_residual", False),
        )

    @property
    def num_hidden_states(self) -> int:
        """Hidden states of the target that it reads for a token."""
        return len(self.feature_layers) or _NUM_EAGLE3_LAYERS

    @property
    def untied_layer(self) -> ModelSpec:
        """Its decoder layer's shape, with an output matrix that is not the embedding."""
        return dataclasses.replace(self.layer, tie_word_embeddings=False)

    def layers_of(self, target: ModelSpec) -> tuple[int, ...]:
        """The target's layers whose inputs it reads; the number of layers stands for the last one's output.

        ValueError, naming field and value, if it is a head for another target.
        """
        count = target.num_layers
        layers = self.feature_layers or (2, count // 2, count - 3)
        self._check("target_hidden_size", self.target_hidden_size, target.hidden_size, "hidden size")
        self._check("vocab_size", self.layer.vocab_size, target.vocab_size, "vocabulary size")
        if self.format is HeadFormat.MTP:
            self._check("num_hidden_layers", self.layer_index, count, "number of layers")
        for layer in layers:
            if not 0 <= layer <= count:
                raise ValueError(
                    f"{self.directory}: config.json eagle_aux_hidden_state_layer_ids has {layer}; "
                    f"the target has {count} layers"
                )
        return layers

    def _check(self, field: str, value: int, expected: int, what: str) -> None:
        check_equal(self.directory, field, value, expected, what)


def check_equal(directory: Path, field: str, value: int, expected: int, what: str) -> None:
    """ValueError unless a field of a draft's config.json is what the target has; `what` names that."""
    if value != expected:
        raise ValueError(f"{directory}: config.json {field} is {value}; expected {expected}, the target's {what}")


def inflated_layers(layers: tuple[int, ...], spec: ModelSpec, inflation: Inflation | None) -> tuple[int, ...]:
    """Layers of the inflated model before which the residual stream is that before these of the small one."""
    count = inflation.inflated(spec).num_layers if inflation else spec.num_layers
    return tuple(layer * count // spec.num_layers for layer in layers)


def _feature_layers(directory: Path, values: Mapping[str, Any]) -> tuple[int, ...]:
    field = "eagle_aux_hidden_state_layer_ids"
    nested = values.get("eagle_config")
    found = values.get(field) or (nested.get(field) if isinstance(nested, dict) else None)
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) != 3 or any(type(layer) is not int for layer in found):
        raise ValueError(f"{directory}: config.json {field} is {shown(found)}; expected three layers")
    return tuple(found)
