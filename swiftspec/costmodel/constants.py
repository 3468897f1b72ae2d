"""Constants of the composition that are in no table, each fitted to published measurements: constants.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

_FILE = Path(__file__).with_name("constants.json")
# Value, unit, and the data it was fitted on, by name.
FITTED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(json.loads(_FILE.read_text(encoding="utf-8")))
CONSTANTS: Final[Mapping[str, float]] = MappingProxyType({name: fact["value"] for name, fact in FITTED.items()})
