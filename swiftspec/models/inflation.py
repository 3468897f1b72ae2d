"""Shape to which a model is expanded without changing its output."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swiftspec.files.reading import shown
from swiftspec.models.spec import ModelSpec, model_directory

__all__ = ["Inflation", "inflated_spec"]

_MOST_DIGITS: Final = 9  # of a dimension that a user requests


def inflated_spec(name: str | Path, inflate: str | None) -> ModelSpec:
    """Shape of the model of a directory as it runs: inflated if asked for."""
    spec = ModelSpec.from_directory(model_directory(name))
    return Inflation.parse(inflate).inflated(spec) if inflate else spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Inflation:
    """Shape to which a model is expanded without changing its output; None leaves a dimension unchanged.

    If only `hidden` is given, heads and intermediate grow in proportion. Heads come in whole groups, so that the number
    of query heads per key/value head stays the same. `positions` is the longest context; beyond the model's own, its
    output is no longer meaningful text.
    """

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    intermediate: int | None = None
    positions: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and value < 1:
                raise ValueError(f"inflation: {field.name} is {value}; expected a positive integer")

    def __str__(self) -> str:
        """The text that `parse` reads."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ",".join(f"{name}={value}" for name, value in given.items() if value is not None)

    @classmethod
    def parse(cls, text: str) -> Inflation:
        """Read `layers=24,hidden=1024`. ValueError names the key and value that do not fit."""
        names = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, int] = {}
        for part in text.split(","):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in names or not equals:
                raise ValueError(f"inflation: {shown(part.strip())} is not KEY=NUMBER with a key of {', '.join(names)}")
            if key in values:
                raise ValueError(f"inflation: {key} is given twice")
            if not (value.isascii() and value.isdigit()) or len(value) > _MOST_DIGITS or int(value) < 1:
                raise ValueError(
                    f"inflation: {key} is {shown(value)}; expected a positive integer of at most {_MOST_DIGITS} digits"
                )
            values[key] = int(value)
        return cls(**values)

    def inflated(self, spec: ModelSpec) -> ModelSpec:
        """Spec of the expanded model. ValueError if a dimension would shrink or heads do not form whole groups."""
        hidden = self.hidden or spec.hidden_size
        heads, intermediate = self.heads, self.intermediate
        if heads is None:
            groups = -(-spec.num_kv_heads * hidden // spec.hidden_size)
            heads = groups * spec.group_size
        if intermediate is None:
            intermediate = -(-spec.intermediate_size * hidden // spec.hidden_size)
        grown = {
            "layers": (self.layers or spec.num_layers, spec.num_layers),
            "hidden": (hidden, spec.hidden_size),
            "heads": (heads, spec.num_heads),
            "intermediate": (intermediate, spec.intermediate_size),
            "positions": (self.positions or spec.max_position, spec.max_position),
        }
        for name, (value, original) in grown.items():
            if value < original:
                raise ValueError(f"inflation: {name} is {value}; expected at least the model's own {original}")
        if heads % spec.group_size:
            raise ValueError(f"inflation: heads is {heads}; expected a multiple of the group size {spec.group_size}")
        return dataclasses.replace(
            spec,
            num_layers=grown["layers"][0],
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=heads // spec.group_size,
            intermediate_size=intermediate,
            max_position=grown["positions"][0],
            # The mean square is now over more dimensions, all of the new ones zero.
            rms_norm_eps=spec.rms_norm_eps * spec.hidden_size / hidden,
        )
