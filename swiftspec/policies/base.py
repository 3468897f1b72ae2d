"""What a policy is to a driver and to the planner."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, Protocol

from swiftspec.policies.effects import Program, Role
from swiftspec.policies.verification import Request

__all__ = ["Layout", "Policy", "check_shape"]


class Layout(StrEnum):
    """Which models a policy needs, and where."""

    TARGET_ONLY = "target-only"
    COLOCATED = "co-located"  # one program; both models on the same devices, in turn
    DISAGGREGATED = "disaggregated"  # a program a role; each model on devices of its own


class Policy(Protocol):
    """A frozen dataclass whose fields are the shape (rows, expansions, capacities); stateless between requests."""

    name: ClassVar[str]
    layout: ClassVar[Layout]

    @property
    def target_rows(self) -> int:
        """Most rows of one verification: the tree slots that the target's cache needs."""

    @property
    def draft_rows(self) -> int:
        """Most draft tree slots in use at once; 0 without a draft."""

    def programs(self, request: Request) -> Mapping[Role, Program]:
        """The role programs of one request; a co-located policy's single program runs as the target."""

    @classmethod
    def search_space(cls) -> Iterator["Policy"]:
        """The shapes a planner tries."""


def check_shape(policy: Policy, **least: int) -> None:
    """ValueError naming field and value where a field is below its `least`, or a temperature is not positive."""
    for field, bound in least.items():
        value = getattr(policy, field)
        if value < bound:
            raise ValueError(f"{field} is {value}; expected at least {bound}")
    temperature = getattr(policy, "draft_temperature", 1.0)
    if not temperature > 0:
        raise ValueError(f"draft_temperature is {temperature}; expected a positive number")
