"""Routing of requests: which of several equal targets serves the next one, and which draft drafts for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

from swiftspec.policies.base import Layout, Policy
from swiftspec.policies.effects import Role

ROUTERS = ("round-robin", "least-loaded")


class Router:
    """Choice among equal replicas, round robin or of the least loaded, by a name of `ROUTERS`.

    Examples
    --------
    >>> router = Router("round-robin")
    >>> [router.choose([9, 0]) for _ in range(3)]
    [0, 1, 0]
    >>> router = Router("least-loaded")
    >>> [router.choose([1, 0, 0]) for _ in range(3)]
    [1, 2, 1]
    """

    def __init__(self, rule: str) -> None:
        self._weighs_load = rule == "least-loaded"
        self._last = -1

    def choose(self, num_requests: Sequence[int]) -> int:
        """Index of the replica that serves the next request; of equals the one after the last choice.

        num_requests: of each replica, those that run and those that wait.
        """
        many = len(num_requests)

        def rank(index: int) -> tuple[int, int]:
            return num_requests[index] if self._weighs_load else 0, (index - self._last - 1) % many

        self._last = min(range(many), key=rank)
        return self._last


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Number of equal targets, who serves which request, and how many groups of devices draft for them.

    num_drafts: draft groups that all targets share: each request has the one with the fewest requests. Each target has
    its own if not given. router: one of `ROUTERS`, of requests to targets.
    """

    num_targets: int = 1
    num_drafts: int | None = None
    router: str = "round-robin"

    @property
    def num_groups(self) -> Mapping[Role, int]:
        """Targets, and draft groups, those of its own for each target included."""
        return {Role.TARGET: self.num_targets, Role.DRAFT: self.num_drafts or self.num_targets}

    def at_once(self, max_running: int) -> str:
        """How many requests run at once, a clause: `at most 8 at once on each of 2 targets with 1 draft group`."""
        each = f" on each of {self.num_targets} targets" if self.num_targets > 1 else ""
        drafts = f" with {self.num_drafts} draft group{'s' * (self.num_drafts > 1)}" if self.num_drafts else ""
        return f"at most {max_running} at once{each}{drafts}"

    def devices(self, groups: Mapping[Role, tuple[int, ...]]) -> dict[Role, tuple[int, ...]]:
        """Devices of all, given those of one: these, and then those after all of these, the targets' first."""
        further = count(1 + max(device for devices in groups.values() for device in devices))
        return {
            role: (*groups[role], *islice(further, (self.num_groups[role] - 1) * len(groups[role])))
            for role in Role
            if role in groups
        }

    def check(self, policy: Policy) -> None:
        """ValueError, naming the field, if a policy cannot run so."""
        if self.num_targets < 1:
            raise ValueError(f"num_targets is {self.num_targets}; expected at least 1")
        if self.router not in ROUTERS:
            raise ValueError(f"router is {self.router!r}; expected {' or '.join(ROUTERS)}")
        if self.num_drafts is None:
            return
        if self.num_drafts < 1:
            raise ValueError(f"num_drafts is {self.num_drafts}; expected at least 1")
        if policy.layout is not Layout.DISAGGREGATED or policy.target_groups > 1:
            raise ValueError(f"num_drafts is {self.num_drafts}; {policy.name} has no draft that targets could share")


ONE_REPLICA = Replicas()
