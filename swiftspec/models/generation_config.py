"""generation_config.json of a model directory: the ends of its outputs, and how its publisher would have it sampled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from swiftspec.files.reading import read_foreign_json, shown

_NAME: Final = "generation_config.json"
_MOST_ID = 2**53
_MOST = 2.0**31
# Field -> its lowest and highest value. Others of the file, such as do_sample, are for other programs.
_SAMPLING: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, _MOST),
    "min_p": (0.0, 1.0),
    "max_new_tokens": (1, _MOST),
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
        found = {name: self._number(name, -_MOST, _MOST) for name in _NEUTRAL if name in self._values}
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
    if any(not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= _MOST_ID for token in ids):
        return None
    return tuple(ids)
