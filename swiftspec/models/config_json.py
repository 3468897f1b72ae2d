"""Fields of a model directory's config.json and generation_config.json with typed access."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from swiftspec.files.reading import read_foreign_json, shown

_MOST: Final = 2**53  # an integer that is exact as a float, and far beyond any model
_MOST_NUMBER: Final = sys.float_info.max
_NAME: Final = "generation_config.json"
_MOST_SAMPLED = 2.0**31
# Field -> its lowest and highest value. Others of the file, such as do_sample, are for other programs.
_SAMPLING: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, _MOST_SAMPLED),
    "min_p": (0.0, 1.0),
    "max_new_tokens": (1, _MOST_SAMPLED),
}
_WHOLE = ("top_k", "max_new_tokens")
_NEUTRAL: Final[Mapping[str, float]] = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


class GenerationConfig:
    """What a generation_config.json says. Only fields that are asked for are checked, with a ValueError naming one."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = {name: value for name, value in values.items() if value is not None}

    @classmethod
    def read(cls, directory: Path) -> Self:
        """That of a model directory; an empty one if it has none."""
        path = directory / _NAME
        values = read_foreign_json(path) if path.is_file() else {}
        if not isinstance(values, dict):
            raise ValueError(f"{path}: holds {type(values).__name__}; expected an object")
        return cls(path, values)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an output."""
        ends = token_ids(self._values.get("eos_token_id"))
        if ends is None:
            raise self._fault("eos_token_id", "a token id or a list of them")
        return ends

    @property
    def sampling(self) -> dict[str, float]:
        """Defaults of `temperature`, `top_p`, `top_k`, `min_p` and `max_new_tokens`, those that it has."""
        return {name: self._number(name, *_SAMPLING[name]) for name in _SAMPLING if name in self._values}

    @property
    def left_out(self) -> dict[str, float]:
        """What it has of penalties, which nothing here applies."""
        found = {name: self._number(name, -_MOST_SAMPLED, _MOST_SAMPLED) for name in _NEUTRAL if name in self._values}
        return {name: value for name, value in found.items() if value != _NEUTRAL[name]}

    def _number(self, name: str, least: float, most: float) -> float:
        value = self._values[name]
        kind = int if name in _WHOLE else int | float
        if not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most:
            raise self._fault(name, f"a {'whole ' * (name in _WHOLE)}number from {least:g} to {most:g}")
        return float(value)

    def _fault(self, name: str, expected: str) -> ValueError:
        return ValueError(f"{self._path}: {name} is {shown(self._values[name])}; expected {expected}")


def token_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids that a field lists, or its only one; None if it has anything else."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= _MOST for token in ids):
        return None
    return tuple(ids)


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

    def _value(self, field: str, default: object) -> Any:
        value = self.values.get(field)
        return default if value is None else value

    def integer(self, field: str, default: int | None = None, *, most: int = _MOST) -> int:
        value = self._value(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fail(field, value, "a positive integer")
        if value > most:
            raise self.fail(field, value, f"at most {most}")
        return value

    def count(self, field: str) -> int:
        """An integer that may be zero, or left out, which is the same."""
        value = self._value(field, 0)
        return 0 if type(value) is int and value == 0 else self.integer(field)

    def number(self, field: str, default: float | None = None) -> float:
        value = self._value(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST_NUMBER:
            raise self.fail(field, value, "a positive number")
        return float(value)

    def flag(self, field: str, default: bool) -> bool:
        value = self._value(field, default)
        if not isinstance(value, bool):
            raise self.fail(field, value, "true or false")
        return value

    def present(self, fields: tuple[str, ...]) -> str:
        """The first of these fields that is there, else the first."""
        return next((field for field in fields if self.values.get(field) is not None), fields[0])

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
