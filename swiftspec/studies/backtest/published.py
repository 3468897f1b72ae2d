"""Published figures that come with the package."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from swiftspec.files.reading import parse_json


@cache
def read_facts(name: str) -> Mapping[str, Any]:
    """The figures of `data/NAME.json`."""
    content: Mapping[str, Any] = parse_json(files(__package__).joinpath("data", f"{name}.json").read_bytes())
    return content
