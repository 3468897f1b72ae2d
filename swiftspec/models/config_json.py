"""Fields of a config.json with typed access."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.generation_config import GenerationConfig, token_ids

_MOST: Final = 2**53  # an integer that is exact as a float, and far beyond any model
_MOST_NUMBER: Final = sys.float_info.max


class ConfigJson:
    """A config.json with typed access; every error names the directory, the field and its value.

    The file may hold anything that JSON can say and more, such as NaN: only the fields that are asked for are checked.
    A null is a field that is left out.
    """

    def __init__(self, directory: Path, values: Mapping[str, Any]) -> None:
        self.directory = directory
        self.values = values

    @classmethod
    def read(cls, directory: Path) -> Self:
        path = directory / "config.json"
        values = read_foreign_json(path)
        if not isinstance(values, dict):
            raise ValueError(f"{path}: holds {type(values).__name__}; expected an object")
        inner = values.get("transformer_layer_config")  # the layers' own fields, in a draft written by speculators
        return cls(directory, inner if isinstance(inner, dict) else values)

    def fail(self, field: str, value: object, expected: str) -> ValueError:
        return ValueError(f"{self.directory}: config.json {field} is {shown(value)}; expected {expected}")

    def _value(self, field: str, default: object, source: Mapping[str, Any] | None = None) -> Any:
        value = (self.values if source is None else source).get(field)
        return default if value is None else value

    def integer(
        self, field: str, default: int | None = None, *, most: int = _MOST, source: Mapping[str, Any] | None = None
    ) -> int:
        value = self._value(field, default, source)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fail(field, value, "a positive integer")
        if value > most:
            raise self.fail(field, value, f"at most {most}")
        return value

    def count(self, field: str, *, source: Mapping[str, Any] | None = None) -> int:
        """An integer that may be zero, or left out, which is the same."""
        value = self._value(field, 0, source)
        return 0 if type(value) is int and value == 0 else self.integer(field, source=source)

    def number(self, field: str, default: float | None = None, *, source: Mapping[str, Any] | None = None) -> float:
        value = self._value(field, default, source)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST_NUMBER:
            raise self.fail(field, value, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self.fail(field, value, "true or false")
        return value

    def require_experts_everywhere(self) -> None:
        """Refuse experts in some layers only, unless all after the first few: they would be counted wrongly."""
        for field in ("decoder_sparse_step", "moe_layer_freq", "moe_layer_interval"):
            if self.values.get(field, 1) != 1:
                raise self.fail(field, self.values[field], "1")
        if self.values.get("mlp_only_layers"):
            raise self.fail("mlp_only_layers", self.values["mlp_only_layers"], "none")

    def eos_token_ids(self) -> tuple[int, ...]:
        """Ends of an output: its own and those of generation_config.json, which has some that this one lacks."""
        value = self.values.get("eos_token_id")
        if (own := token_ids(value)) is None:
            raise self.fail("eos_token_id", value, "a token id or a list of them")
        return tuple(dict.fromkeys((*own, *GenerationConfig.read(self.directory).eos_token_ids)))
