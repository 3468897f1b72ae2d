"""Role programs of all policies, one file each. They do no I/O (see `effects`)."""

from dataclasses import fields
from typing import Any, cast

from swiftspec.policies.amusd import Amusd
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import Layout, Policy
from swiftspec.policies.dsi import Dsi
from swiftspec.policies.eagle2 import Eagle2Tree
from swiftspec.policies.easyspec import EasySpec
from swiftspec.policies.mirror import Mirror
from swiftspec.policies.pearl import Pearl
from swiftspec.policies.prompt_lookup import PromptLookup
from swiftspec.policies.request import Request
from swiftspec.policies.sequoia import SequoiaTree
from swiftspec.policies.serial import SerialChain, SerialTree
from swiftspec.policies.specbranch import SpecBranch
from swiftspec.policies.ssd import Ssd
from swiftspec.policies.swiftspec import SwiftSpec

__all__ = ["POLICIES", "Layout", "Policy", "Request", "make_policy"]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Autoregressive,
        PromptLookup,
        SerialChain,
        SerialTree,
        SequoiaTree,
        Eagle2Tree,
        EasySpec,
        Pearl,
        SpecBranch,
        Amusd,
        Dsi,
        Ssd,
        Mirror,
        SwiftSpec,
    )
}


def make_policy(name: str, /, **shape: Any) -> Policy:
    """A policy by its name on the command line. ValueError names what is unknown and what there is."""
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}; expected one of {', '.join(POLICIES)}")
    cls = POLICIES[name]
    known = {field.name: field.type for field in fields(cast(Any, cls))}  # every policy is a dataclass
    for key, value in shape.items():
        if key not in known:
            raise ValueError(f"{name} has no field {key!r}; it has {', '.join(known) or 'none'}")
        if not _fits(value, known[key]):
            expected = _EXPECTED.get(known[key], "numbers")
            raise ValueError(f"{name}.{key} is {value!r}; expected {expected}")
    return cls(**shape)


_EXPECTED: dict[Any, str] = {int: "a whole number", float: "a number"}


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return type(value) is int
    if kind is float:
        return type(value) in (int, float)
    return type(value) is tuple and all(_fits(item, float) for item in value)
