"""The few constants of composition that are not in a table, each fitted to measurements of others: constants.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

__all__ = ["CONSTANTS", "Fitted", "fitted_constants"]

_FILE = Path(__file__).with_name("constants.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """One constant: `value` in `unit`, and what it was fitted on."""

    name: str
    value: float
    unit: str
    fitted_on: str


def fitted_constants() -> tuple[Fitted, ...]:
    """All of them, as the file has them."""
    content = json.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(Fitted(name=name, **entry) for name, entry in content.items())


CONSTANTS: Final[Mapping[str, float]] = MappingProxyType({fact.name: fact.value for fact in fitted_constants()})
