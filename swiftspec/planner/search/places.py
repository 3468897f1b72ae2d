"""Places of an option: device groups of every size, on nodes, divided by ranks."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from swiftspec.devices import ClusterSpec
from swiftspec.planner.search.option import Option
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.steps import Latencies

_OTHER_SPLIT = "not on the split that was asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Placements of a policy's shapes, which all shapes with as many groups share.

    cluster: nodes, within which a group has to be; anywhere if there is none.
    num_devices, draft_devices, ranks, splits: as of `feasible_options`.
    """

    latencies: Latencies
    cluster: ClusterSpec | None
    num_devices: int
    draft_devices: int
    ranks: int | None
    splits: Collection[str]
    _known: dict[tuple[Layout, int], tuple[list[Option], Counter[str]]] = field(default_factory=dict)

    def of(self, policy: Policy) -> tuple[list[Option], Counter[str]]:
        """Options of one shape, and how many there are not, by the reason."""
        key = (policy.layout, policy.target_groups)
        if key not in self._known:
            rejected: Counter[str] = Counter()
            self._known[key] = list(self._placed(policy, rejected)), +rejected
        options, rejected = self._known[key]
        return [Option(policy=policy, groups=one.groups, ranks=one.ranks) for one in options], rejected

    def _placed(self, policy: Policy, rejected: Counter[str]) -> Iterator[Option]:
        placements = list(_placements(policy, self.num_devices, self.draft_devices))
        if not placements:
            rejected[_too_few(policy, self.num_devices)] += 1
        for sizes in placements:
            draft_from = self.num_devices if self.draft_devices else None
            option = Option.within(self.cluster, policy, sizes, draft_from=draft_from)
            if option is None:
                rejected["one forward would be divided over nodes"] += 1
                continue
            divisions = list(self._divided(option))
            if not divisions:
                rejected[f"the profile has none of its groups divided by {self.ranks} ranks"] += 1
            for divided in divisions:
                if self.splits and not {option.split, divided.split} & set(self.splits):
                    rejected[_OTHER_SPLIT] += 1
                else:
                    yield divided

    def _divided(self, option: Option) -> Iterator[Option]:
        """The option with its groups divided by 1 rank or as many as the profile has; by `ranks` only, if possible."""
        known, ranks = [self._ranks(option, role) for role in option.groups], self.ranks
        if ranks is not None:
            known = [[ranks] if ranks in numbers else [1] for numbers in known]
            if not any(ranks in numbers for numbers in known):
                return
        for numbers in product(*known):
            several = {role: number for role, number in zip(option.groups, numbers, strict=True) if number > 1}
            yield replace(option, ranks=several)

    def _ranks(self, option: Option, holder: Role) -> list[int]:
        """Numbers of ranks that a group's steps are known for; one is always included."""
        layout = option.policy.layout
        roles = [holder, Role.DRAFT] if layout is Layout.COLOCATED else [holder]
        known = (set(self.latencies.of(role, layout).ranks(option.degree(role), role=role)) for role in roles)
        return sorted({1, *set.intersection(*known)})


def _too_few(policy: Policy, num_devices: int) -> str:
    several = policy.target_groups > 1
    needed = "a device for the draft and one for each of two or more target groups" if several else "2 devices"
    return f"needs {needed}, and there {'is' if num_devices == 1 else 'are'} {num_devices}"


def _placements(policy: Policy, num_devices: int, draft_devices: int) -> Iterator[tuple[int, ...]]:
    """Sizes of the groups, the target's first."""
    for target in range(policy.target_groups, num_devices + 1, policy.target_groups):
        if policy.layout is not Layout.DISAGGREGATED:
            yield (target,)
            continue
        for draft in range(1, (draft_devices or num_devices - target) + 1):
            yield target, draft
