"""Option: a policy with its shape on device groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from swiftspec.artifacts.candidate import described, named_split
from swiftspec.devices import ClusterSpec
from swiftspec.policies import Layout, Policy
from swiftspec.policies.base import Value, shape_of
from swiftspec.policies.effects import Role
from swiftspec.policies.registry import plainness

Split = tuple[tuple[int, int], ...]  # devices of each group, the target's first, and the ranks that divide them
Key = tuple[Policy, Split]  # identifies an option: its policy with its shape, and its split


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A policy with its shape on device groups: a plan's candidate before its speed is known.

    ranks: of the groups that several processes divide, as in a plan's candidate.
    """

    policy: Policy
    groups: Mapping[Role, tuple[int, ...]]
    ranks: Mapping[Role, int] = field(default_factory=dict)

    @classmethod
    def placed(cls, policy: Policy, sizes: Sequence[int], *, draft_from: int | None = None) -> "Option":
        """Groups of these sizes on consecutive devices: the target's, then the draft's.

        draft_from: first device of a draft that does not share the target's kind of them.
        """
        target = range(sizes[0])
        groups = {Role.TARGET: tuple(target)}
        first = target.stop if draft_from is None else draft_from
        for size in sizes[1:]:
            groups[Role.DRAFT] = tuple(range(first, first + size))
        return cls(policy=policy, groups=groups)

    @classmethod
    def within(
        cls, cluster: ClusterSpec | None, policy: Policy, sizes: Sequence[int], *, draft_from: int | None = None
    ) -> "Option | None":
        """As `placed`, but with every TP group within one node of a cluster; None where that is impossible."""
        placed = cls.placed(policy, sizes, draft_from=draft_from)
        if cluster is None:
            return placed
        copies = [sizes[0] // policy.target_groups] * policy.target_groups
        groups = cluster.place(copies if draft_from is not None else [*copies, *sizes[1:]])
        if groups is None:
            return None
        found = {**placed.groups, Role.TARGET: tuple(chain(*groups[: len(copies)]))}
        for group in groups[len(copies) :]:
            found[Role.DRAFT] = tuple(group)
        return cls(policy=policy, groups=found)

    def describe(self) -> str:
        """The same description as a plan's candidate has."""
        return described(self.policy.name, self.split, shape_of(self.policy))

    @property
    def num_devices(self) -> int:
        return sum(map(len, self.groups.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of each group, the target's first."""
        return tuple(map(len, self.groups.values()))

    @property
    def split(self) -> str:
        """`4+4`; a single number for one group; `2x1` where two ranks have one device each."""
        return named_split(self.groups, self.ranks, target_groups=self.policy.target_groups)

    @property
    def split_key(self) -> Split:
        """The split as a comparable key."""
        return tuple((len(devices), self.ranks.get(role, 1)) for role, devices in self.groups.items())

    @property
    def degrees(self) -> dict[Role, int]:
        """Devices of each role; a co-located draft has the target's."""
        return {role: len(self.groups[self._holder(role)]) for role in Role if self._holder(role) in self.groups}

    def degree(self, role: Role) -> int:
        """Devices that one forward of a role runs on."""
        return len(self.groups[self._holder(role)]) // (self.policy.target_groups if role is Role.TARGET else 1)

    def num_ranks(self, role: Role) -> int:
        """Processes that divide one forward of a role."""
        return self.ranks.get(self._holder(role), 1)

    def _holder(self, role: Role) -> Role:
        return role if self.policy.layout is Layout.DISAGGREGATED else Role.TARGET

    @property
    def key(self) -> "Key":
        return self.policy, self.split_key

    @property
    def simplicity(self) -> tuple[Value | str, ...]:
        """Sort key for preference among equals: plainer policy, fewer devices, ranks and rows."""
        size = (self.num_devices, sum(self.ranks.values()), self.policy.target_rows)
        return (*plainness(self.policy.name), *size, *shape_of(self.policy).values())
