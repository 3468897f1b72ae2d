"""Fields of a config.json with typed access."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from swiftspec.files.reading import read_json, shown

__all__ = ["ConfigJson"]

_MOST: Final = 2**53  # an integer that is exact as a float, and far beyond any model


class ConfigJson:
    """A config.json with typed access; every error names the directory, the field and its value."""

    def __init__(self, directory: Path, values: Mapping[str, Any]) -> None:
        self.directory = directory
        self.values = values

    @classmethod
    def read(cls, directory: Path) -> Self:
        path = directory / "config.json"
        values = read_json(path)
        if not isinstance(values, dict):
            raise ValueError(f"{path}: holds {type(values).__name__}; expected an object")
        inner = values.get("transformer_layer_config")  # the layers' own fields, in a draft written by speculators
        return cls(directory, inner if isinstance(inner, dict) else values)

    def fail(self, field: str, value: object, expected: str) -> ValueError:
        return ValueError(f"{self.directory}: config.json {field} is {shown(value)}; expected {expected}")

    def integer(self, field: str, default: int | None = None) -> int:
        value = self.values.get(field)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise self.fail(field, value, "a positive integer")
        return value

    def count(self, field: str) -> int:
        return self.integer(field) if self.values.get(field) else 0

    def number(self, field: str, default: float | None = None, *, source: Mapping[str, Any] | None = None) -> float:
        value = (self.values if source is None else source).get(field)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.fail(field, value, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self.values.get(field, default)
        if not isinstance(value, bool):
            raise self.fail(field, value, "true or false")
        return value

    def require_experts_everywhere(self) -> None:
        """Refuse experts in some layers only, unless all after the first few: they would be counted wrongly."""
        for field in ("decoder_sparse_step", "moe_layer_freq"):
            if self.values.get(field, 1) != 1:
                raise self.fail(field, self.values[field], "1")
        if self.values.get("mlp_only_layers"):
            raise self.fail("mlp_only_layers", self.values["mlp_only_layers"], "none")

    def eos_token_ids(self) -> tuple[int, ...]:
        value = self.values.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(not isinstance(token, int) or isinstance(token, bool) or token < 0 for token in ids):
            raise self.fail("eos_token_id", value, "a token id or a list of them")
        return tuple(ids)
