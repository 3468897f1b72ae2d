"""Conformance of a class to the Policy protocol: whether the planner and both drivers can use it."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast, get_type_hints

from swiftspec.policies.base import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.policies.request import Request

_FIELD_TYPES = (int, float, tuple[float, ...])  # types that a plan file can hold; see `base.Value`
# Integer fields of a shape, and the minimum of each.
_COUNTS = {
    "target_rows": 1,
    "target_groups": 1,
    "draft_rows": 0,
    "expand_rows": 0,
    "num_candidates": 0,
    "serial_forwards": 0,
    "draft_levels": 1,
    "earlier_outputs": 0,
    "max_tree_depth": 0,
}


def faults(name: str, cls: Any) -> Iterator[str]:
    """Reasons why a class cannot be the policy `name`, as predicates; the first one counts.

    Programs are made, but not run.
    """
    yield from _of_class(name, cls)
    yield from _of_shape(cls, cls())


@cache
def field_types(cls: type[Policy]) -> dict[str, Any]:
    """Types of a policy's fields by name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cast(Any, cls))}  # every policy is a dataclass


def _of_class(name: str, cls: Any) -> Iterator[str]:
    if not isinstance(cls, type) or not is_dataclass(cls) or not cast(Any, cls).__dataclass_params__.frozen:
        yield "is not a frozen dataclass"
    missing = getattr(cls, "__abstractmethods__", ())
    for member in (*Policy.__annotations__, *(member for member in vars(Policy) if not member.startswith("_"))):
        if member in missing or not hasattr(cls, member):
            yield f"has no {member}"
    if cls.name != name or not name.isidentifier():
        yield f"has the name {cls.name!r}; expected that of its entry point, of letters, digits and underscores"
    if not isinstance(cls.layout, Layout):
        yield f"has the layout {cls.layout!r}; expected one of Layout"
    for field, kind in field_types(cls).items():
        if kind not in _FIELD_TYPES:
            yield f"has the field {field}, whose type is not int, float or tuple[float, ...]"


def _of_shape(cls: Any, policy: Policy) -> Iterator[str]:
    for count, least in _COUNTS.items():
        if type(value := getattr(policy, count)) is not int or value < least:
            yield f"has {count} {value!r}; expected a whole number, at least {least}"
    roles = set(policy.programs(Request(prompt=(0,), max_new_tokens=1)))
    expected = set(Role) if policy.layout is Layout.DISAGGREGATED else {Role.TARGET}
    if roles != expected:
        yield f"has programs of {_listed(roles)}; a {policy.layout} policy has those of {_listed(expected)}"
    if not isinstance(next(iter(policy.search_space()), None), cls):
        yield "has a search_space that does not begin with a shape of its own"


def _listed(roles: set[Role]) -> str:
    return " and ".join(sorted(roles, reverse=True)) or "nobody"
