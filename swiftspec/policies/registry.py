"""Registry of policies: the built-in ones, and those that other installed packages offer.

A package offers a policy as an entry point of the group `swiftspec.policies`, under the policy's name; see
docs/writing-a-policy.md. No such package is imported before one of its policies is named, or all policies are
requested. A policy that cannot be used is an error if it was named, otherwise a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from swiftspec.errors import FieldError
from swiftspec.policies.asynchronous.amusd import Amusd
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.minedraft import MineDraft
from swiftspec.policies.asynchronous.mirror import Mirror
from swiftspec.policies.asynchronous.pearl import Pearl
from swiftspec.policies.asynchronous.specbranch import SpecBranch
from swiftspec.policies.asynchronous.ssd import Ssd
from swiftspec.policies.asynchronous.ssd_head import SsdHead
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.asynchronous.swiftspec_chain import SwiftSpecChain
from swiftspec.policies.asynchronous.swiftspec_parallel import SwiftSpecParallel
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import Layout, Policy
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.policies.lookup.suffix_or_draft import SuffixOrDraft
from swiftspec.policies.request import Request
from swiftspec.policies.trees.eagle2 import Eagle2Tree, EasySpec
from swiftspec.policies.trees.heads import HeadChain, HeadTree
from swiftspec.policies.trees.parallel_tree import ParallelTree
from swiftspec.policies.trees.sequoia import SequoiaTree

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "swiftspec.policies"  # of entry points

# The built-in policies, plainest first: the planner breaks ties in this order.
POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Autoregressive,
        PromptLookup,
        SuffixDecoding,
        SerialChain,
        SerialTree,
        SuffixOrDraft,
        SequoiaTree,
        Eagle2Tree,
        EasySpec,
        HeadChain,
        HeadTree,
        ParallelChain,
        ParallelTree,
        MineDraft,
        Pearl,
        SpecBranch,
        Amusd,
        Dsi,
        Ssd,
        SsdHead,
        Mirror,
        SwiftSpecChain,
        SwiftSpec,
        SwiftSpecParallel,
    )
}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A policy that another package offers.

    package: its name and version. policy: the class; None if it cannot be used. fault: a sentence with the reason.
    """

    name: str
    package: str
    policy: type[Policy] | None = None
    fault: str = ""


def plainness(name: str) -> tuple[int, str]:
    """Sort key of policies, plainest first: ours in their order, then those of other packages by name."""
    return (list(POLICIES).index(name) if name in POLICIES else len(POLICIES)), name


def policy_names() -> list[str]:
    """Names of all policies, plainest first. Imports no other package."""
    return [*POLICIES, *sorted(_entry_points().keys() - POLICIES.keys())]


def policy_class(name: str) -> type[Policy]:
    """The policy with this name. ValueError if there is none, or the package that offers it is at fault."""
    if name in POLICIES:
        return POLICIES[name]
    if name not in _entry_points():
        raise FieldError("policy", repr(name), f"expected one of {', '.join(policy_names())}")
    offer = _offer(name)
    if offer.policy is None:
        raise ValueError(offer.fault)
    return offer.policy


def policy_classes(names: Collection[str] | None = None) -> list[type[Policy]]:
    """The policies with these names, or all usable ones, plainest first. Warns of those that cannot be used."""
    if names is not None:
        return [policy_class(name) for name in sorted(names, key=plainness)]
    found = list(POLICIES.values())
    for offer in offers():
        if offer.policy is None:
            _warn(offer.fault)
        else:
            found.append(offer.policy)
    return found


def make_policy(name: str, /, **shape: Any) -> Policy:
    """A policy by its name on the command line. ValueError names what is unknown and the known alternatives."""
    cls = policy_class(name)
    kinds = field_types(cls)
    for key, value in shape.items():
        if key not in kinds:
            raise ValueError(f"{name} has no field {key!r}; it has {', '.join(kinds) or 'none'}")
        if not _fits(value, kinds[key]):
            expected = _EXPECTED.get(kinds[key], "numbers")
            raise ValueError(f"{name}.{key} is {value!r}; expected {expected}")
    return cls(**shape)


def package_of(name: str) -> str | None:
    """Name and version of the package that offers a policy; None for a built-in or unknown one."""
    return None if name in POLICIES or name not in _entry_points() else _package(_entry_points()[name][0])


def offers() -> list[Offer]:
    """Policies of other packages, by name; imports all of these packages."""
    return [_offer(name) for name in sorted(_entry_points())]


@cache
def _entry_points() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points of our group, by name."""
    from importlib.metadata import entry_points  # takes 20 ms, which commands without policies avoid

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry_point in entry_points(group=GROUP):
        found[entry_point.name] = (*found.get(entry_point.name, ()), entry_point)
    return found


@cache
def _offer(name: str) -> Offer:
    entry_point, *others = _entry_points()[name]
    package = _package(entry_point)
    where = f"package {package}: policy {name} ({entry_point.value})"
    if name in POLICIES:
        return Offer(name=name, package=package, fault=f"{where} has the name of a built-in policy")
    if others:
        packages = " and ".join(sorted(map(_package, (entry_point, *others))))
        return Offer(name=name, package=packages, fault=f"policy {name} is offered by the packages {packages}")
    try:
        cls = entry_point.load()
        fault = next(faults(name, cls), None)
    except Exception as error:  # noqa: BLE001 - the package is not ours: it may raise anything
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        return Offer(name=name, package=package, fault=f"{where} cannot be loaded ({cause})")
    if fault is not None:
        return Offer(name=name, package=package, fault=f"{where} {fault}")
    return Offer(name=name, package=package, policy=cls)


def _package(entry_point: EntryPoint) -> str:
    found = entry_point.dist
    return f"{found.name} {found.version}" if found else "unknown"


@cache
def _warn(sentence: str) -> None:
    """Warn, once per process and sentence."""
    logging.getLogger(__name__).warning("%s; it is left out", sentence)


_EXPECTED: dict[Any, str] = {int: "a whole number", float: "a number"}


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return type(value) is int
    if kind is float:
        return type(value) in (int, float)
    return type(value) is tuple and all(_fits(item, float) for item in value)


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
    if not cls.grid and cls.search_space.__func__ is vars(Policy)["search_space"].__func__:
        yield "has no search_space"
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
