"""Role programs: one policy, one file, one line here. Sans-IO (see `effects`)."""

from dataclasses import fields
from typing import Any

from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import Layout, Policy
from swiftspec.policies.serial import SerialChain, SerialTree
from swiftspec.policies.swiftspec import SwiftSpec
from swiftspec.policies.verification import Request

__all__ = ["POLICIES", "Layout", "Policy", "Request", "make_policy"]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Autoregressive, SerialChain, SerialTree, SwiftSpec)
}


def make_policy(name: str, /, **shape: Any) -> Policy:
    """A policy by its name on the command line. ValueError names what is unknown and what there is."""
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}; expected one of {', '.join(POLICIES)}")
    cls = POLICIES[name]
    known = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]  # every policy is a dataclass
    for key, value in shape.items():
        if key not in known:
            raise ValueError(f"{name} has no field {key!r}; it has {', '.join(known) or 'none'}")
        if type(value) is not int and (known[key] is int or type(value) is not float):
            expected = "a whole number" if known[key] is int else "a number"
            raise ValueError(f"{name}.{key} is {value!r}; expected {expected}")
    return cls(**shape)
