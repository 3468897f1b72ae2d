"""What a planner may choose from: every policy's shapes on every placement, and what of that a profile can price."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from swiftspec.acceptance import AcceptanceTrace, Guesser
from swiftspec.planner.fit import Fit
from swiftspec.policies import POLICIES, Layout, Policy
from swiftspec.policies.base import Value, shape_of
from swiftspec.policies.effects import Role
from swiftspec.profile import Profile
from swiftspec.timeline import Phase

__all__ = ["Option", "feasible_options"]

# How far beyond the measured grid a price is still believed: rows are extrapolated, contexts held flat.
MAX_ROWS_FACTOR = 2
MAX_CONTEXT_FACTOR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A policy with its shape on device groups: a plan's candidate before anybody knows how fast it is."""

    policy: Policy
    groups: Mapping[Role, tuple[int, ...]]

    @property
    def degrees(self) -> dict[Role, int]:
        """Devices of each role; a co-located draft has the target's."""
        sizes = {role: len(devices) for role, devices in self.groups.items()}
        return sizes if self.policy.layout is Layout.DISAGGREGATED else dict.fromkeys(Role, sizes[Role.TARGET])

    def degree(self, role: Role) -> int:
        """Devices that one forward of a role runs on."""
        return self.degrees[role] // (self.policy.target_groups if role is Role.TARGET else 1)

    @property
    def key(self) -> tuple[Policy, tuple[int, ...]]:
        """What tells it from other options."""
        return self.policy, tuple(map(len, self.groups.values()))

    @property
    def simplicity(self) -> tuple[Value, ...]:
        """Ascending order of what to prefer among equals: plainer policy, fewer devices, fewer rows."""
        num_devices = sum(map(len, self.groups.values()))
        shape = shape_of(self.policy)
        return (list(POLICIES).index(self.policy.name), num_devices, self.policy.target_rows, *shape.values())


def feasible_options(
    profile: Profile, trace: AcceptanceTrace, *, num_devices: int
) -> tuple[list[Option], Counter[str]]:
    """Everything that the profile can price, simplest policy first; and how many options fell to which reason."""
    feasible: list[Option] = []
    rejected: Counter[str] = Counter()
    fit = Fit(trace)
    for policy_class in POLICIES.values():
        for policy in map(fit, policy_class.search_space()):
            placements = list(_placements(policy, num_devices))
            if not placements:
                rejected[_too_few(policy, num_devices)] += 1
            for groups in placements:
                option = Option(policy=policy, groups=groups)
                reason = _objection(option, profile, trace)
                if reason is None:
                    feasible.append(option)
                else:
                    rejected[reason] += 1
    return feasible, rejected


def _too_few(policy: Policy, num_devices: int) -> str:
    several = policy.target_groups > 1
    needed = "a device for the draft and one for each of two or more target groups" if several else "2 devices"
    return f"{policy.name}: needs {needed}, and there {'is' if num_devices == 1 else 'are'} {num_devices}"


def _placements(policy: Policy, num_devices: int) -> Iterator[dict[Role, tuple[int, ...]]]:
    """Device numbers by role: the target's first, then the draft's."""
    for target in range(policy.target_groups, num_devices + 1, policy.target_groups):
        if policy.layout is not Layout.DISAGGREGATED:
            yield {Role.TARGET: tuple(range(target))}
            continue
        for draft in range(1, num_devices - target + 1):
            yield {Role.TARGET: tuple(range(target)), Role.DRAFT: tuple(range(target, target + draft))}


def _objection(option: Option, profile: Profile, trace: AcceptanceTrace) -> str | None:
    """Why an option cannot be priced; None if it can."""
    policy = option.policy
    if missing := _guessers(policy) - trace.guessers:
        return f"{policy.name}: the trace does not say what {_GUESSER_NAMES[min(missing)]} guesses; record it anew"
    longest = max(prompt.prompt_length + len(prompt.target_tokens) for prompt in trace.prompts)
    for role, forward, most_rows in _forwards(policy):
        degree = option.degree(role)
        for phase in (Phase.PREFILL, forward):
            if degree not in profile.degrees(phase, role=role):
                return f"{policy.name}: the {role}'s {phase} steps were not measured on {_devices(degree)}"
        measured = _measured(profile, role, forward, degree)
        row_limit = MAX_ROWS_FACTOR * max(rows for rows, _ in measured)
        if most_rows > row_limit:
            return (
                f"{policy.name}: more than {row_limit} rows in one {role} forward, {MAX_ROWS_FACTOR} x those measured"
            )
        context_limit = MAX_CONTEXT_FACTOR * max(context for _, context in measured)
        if longest > context_limit > 0:
            return f"{policy.name}: the trace's context of {longest} is over {context_limit}, {_CONTEXT_RULE}"
    return None


_CONTEXT_RULE = f"{MAX_CONTEXT_FACTOR} x that measured"


_GUESSER_NAMES = {Guesser.FUZZY: "a draft with its layers in groups", Guesser.EXIT: "the first half of the target"}


def _guessers(policy: Policy) -> set[Guesser]:
    """Those beside the draft."""
    return {guesser for guesser, asked in ((Guesser.FUZZY, policy.fuzzy), (Guesser.EXIT, policy.exits)) if asked}


def _forwards(policy: Policy) -> Iterator[tuple[Role, Phase, int]]:
    """Whose forwards a policy issues, and the most rows of one."""
    for phase in (Phase.EXIT, Phase.FINISH) if policy.exits else (Phase.VERIFY,):
        yield Role.TARGET, phase, policy.target_rows
    if policy.layout is not Layout.TARGET_ONLY:
        for phase in (Phase.EXPAND, Phase.FUZZY) if policy.fuzzy else (Phase.EXPAND,):
            yield Role.DRAFT, phase, policy.expand_rows


def _measured(profile: Profile, role: Role, phase: Phase, degree: int) -> Sequence[tuple[int, int]]:
    """(rows, context) of the steps measured at a degree."""
    key = (role, phase, degree)
    return [(step.rows, step.context) for step in profile.steps if (step.role, step.phase, step.degree) == key]


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
