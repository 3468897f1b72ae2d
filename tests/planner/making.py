"""Plans made from keyword arguments, which tests vary one at a time."""

from dataclasses import fields
from typing import Any

from swiftspec.artifacts.plan import Plan
from swiftspec.planner.plan import Hardware, make_plan
from swiftspec.planner.search.options import SearchOptions


def made_plan(**arguments: Any) -> Plan:
    """`make_plan`, where each argument goes to the object that has it. One process unless said otherwise."""
    given: dict[str, Any] = {"progress": lambda *_: None, "num_jobs": 1} | arguments

    def taken(cls: type) -> Any:
        return cls(**{field.name: given.pop(field.name) for field in fields(cls) if field.name in given})

    return make_plan(hardware=taken(Hardware), options=taken(SearchOptions), **given)
