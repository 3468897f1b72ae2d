"""Shape to which a model is expanded without changing its output."""

import dataclasses
from dataclasses import dataclass
from typing import Final

from swiftspec.files.document import ModelRef
from swiftspec.files.reading import shown
from swiftspec.models.layer_parts import Experts
from swiftspec.models.spec import ModelSpec, model_directory

# Architectures with the same attention, and experts.
_WITH_EXPERTS: Final = {"llama": "mixtral", "mistral": "mixtral", "qwen3": "qwen3_moe"}
_MOST_DIGITS: Final = 9  # of a dimension that a user requests


def inflated_spec(reference: ModelRef) -> ModelSpec:
    """Shape of the model of a directory as it runs: inflated if the reference says so."""
    spec = ModelSpec.from_directory(model_directory(reference.model))
    return Inflation.parse(reference.inflate).inflated(spec) if reference.inflate else spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Inflation:
    """Shape to which a model is expanded without changing its output; None leaves a dimension unchanged.

    If only `hidden` is given, heads and intermediate grow in proportion. Heads come in whole groups, so that the number
    of query heads per key/value head stays the same. `positions` is the longest context; beyond the model's own, its
    output is no longer meaningful text. `experts` copies of each layer's feed-forward network take its place, of which
    `active` (2 unless given) compute a token.
    """

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    intermediate: int | None = None
    positions: int | None = None
    experts: int | None = None
    active: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and value < 1:
                raise ValueError(f"inflation: {field.name} is {value}; expected a positive integer")
        if self.active is not None and self.active > (self.experts or 0):
            raise ValueError(
                f"inflation: active is {self.active}; expected at most experts, which is {self.experts or 'not given'}"
            )

    def __str__(self) -> str:
        """The text that `parse` reads."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ",".join(f"{name}={value}" for name, value in given.items() if value is not None)

    @classmethod
    def parse(cls, text: str) -> "Inflation":
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
        experts = self._experts(spec, intermediate)
        return dataclasses.replace(
            spec,
            architecture=_WITH_EXPERTS[spec.architecture] if self.experts else spec.architecture,
            num_layers=grown["layers"][0],
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=heads // spec.group_size,
            intermediate_size=intermediate,
            experts=experts,
            max_position=grown["positions"][0],
            # The mean square is now over more dimensions, all of the new ones zero.
            rms_norm_eps=spec.rms_norm_eps * spec.hidden_size / hidden,
        )

    def _experts(self, spec: ModelSpec, size: int) -> Experts | None:
        """Experts of the expanded model, each of this size."""
        if self.experts is None:
            return spec.experts and dataclasses.replace(spec.experts, size=size)
        if spec.experts is not None:
            raise ValueError(f"inflation: experts is {self.experts}; expected none, since the model has its own")
        if spec.architecture not in _WITH_EXPERTS or (spec.qkv_bias and spec.architecture == "llama"):
            raise ValueError(
                f"inflation: experts is {self.experts}; expected none, since no model with experts has the attention "
                f"of this {spec.architecture} model"
            )
        active = min(2, self.experts) if self.active is None else self.active
        return Experts(num_experts=self.experts, num_active=active, size=size)
