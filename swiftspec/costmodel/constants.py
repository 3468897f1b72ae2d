"""Constants of the composition that are in no table, each fitted to published measurements: constants.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

__all__ = ["CONSTANTS", "FittedConstant", "fitted_constants"]

_FILE = Path(__file__).with_name("constants.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """One constant: `value` in `unit`, and the data it was fitted on."""

    name: str
    value: float
    unit: str
    fitted_on: str


def fitted_constants() -> tuple[FittedConstant, ...]:
    """All constants, as in the file."""
    content = json.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(FittedConstant(name=name, **entry) for name, entry in content.items())


CONSTANTS: Final[Mapping[str, float]] = MappingProxyType({fact.name: fact.value for fact in fitted_constants()})
