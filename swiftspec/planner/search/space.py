"""Search space of a planner: every policy's shapes on every placement that a profile can price."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache

import numpy as np

from swiftspec.acceptance.numerics import log_sum_exp
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser
from swiftspec.devices import ClusterSpec
from swiftspec.planner.degrees import ANY_DEGREES, AllowedDegrees
from swiftspec.planner.memory import MemoryModel, gigabytes
from swiftspec.planner.search.option import Option, Split
from swiftspec.planner.search.places import Places
from swiftspec.policies import Layout, Policy, make_policy, policy_classes
from swiftspec.policies.base import lacks_mask, sends_features, shape_of
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase

# How far beyond the measured grid latencies are still used: rows are extrapolated, contexts held flat.
MAX_ROWS_FACTOR = 2
MAX_CONTEXT_FACTOR = 4

_Steps = tuple[Role, Phase, int, int, bool]  # degree, ranks, and whether a draft's devices are of another kind

_COLDEST, _HOTTEST = 10, 200  # hundredths
_NUM_RANKS = 8
_LEAST_SHARE = 0.001  # a probability of 0 or 1 has no odds


class Fit:
    """Fitted fields by name, the same for every policy that has them."""

    def __init__(self, trace: AcceptanceTrace) -> None:
        shares = trace.rank_acceptance(_NUM_RANKS)
        self.fields = {
            "draft_temperature": fitted_temperature(trace),
            "acceptance": round(min(max(shares[0], _LEAST_SHARE), 1 - _LEAST_SHARE), 3),
            "miss_exponent": fitted_miss_exponent(shares),
            "rank_acceptance": tuple(round(share, 4) for share in shares),
        }

    def __call__(self, policy: Policy) -> Policy:
        """The same shape with its fittable fields fitted."""
        shape = shape_of(policy)
        return make_policy(policy.name, **shape | {name: self.fields[name] for name in shape.keys() & self.fields})


def fitted_miss_exponent(shares: Sequence[float]) -> float:
    """The exponent of the power law by which more likely tokens miss the one after a rejection less often.

    shares: of tokens that are the draft's first choice, which is rejected then, second, and so on. By least squares of
    logarithms; 1 where fewer than two numbers of tokens ever miss.
    """
    missed = 1 - np.cumsum(shares)  # by the first, the first two, ..
    few = np.arange(1, len(shares))[missed[1:] > _LEAST_SHARE]
    if len(few) < 2:
        return 1.0
    slope, _ = np.polyfit(np.log(few), np.log(missed[few] / missed[0]), 1)
    return round(max(-float(slope), _LEAST_SHARE), 3)


def fitted_temperature(trace: AcceptanceTrace) -> float:
    """The temperature of greatest likelihood (temperature scaling, Guo et al., arXiv 1706.04599), in hundredths.

    Over the positions whose token is among the recorded candidates; 1 if there is none. Below 1 where the draft is less
    sure than it is right, as is a draft trained on a distribution of which the target takes the most likely token.
    """
    logprobs = np.concatenate([prompt.draft.logprobs for prompt in trace.prompts]).astype(float)
    ranks = np.concatenate([prompt.ranks for prompt in trace.prompts])
    recorded = np.flatnonzero(ranks < logprobs.shape[1])
    if not recorded.size:
        return 1.0
    chosen, logprobs = logprobs[recorded, ranks[recorded]], logprobs[recorded]

    @cache
    def loss(hundredths: int) -> float:  # convex in the inverse temperature, so that the minimum is the only one
        coldness = 100 / hundredths
        return float(np.mean(log_sum_exp(coldness * logprobs) - coldness * chosen))

    return bisect_left(range(_HOTTEST), True, lo=_COLDEST, key=lambda each: loss(each) <= loss(each + 1)) / 100


def feasible_options(
    profile: Profile,
    trace: AcceptanceTrace,
    *,
    num_devices: int,
    draft_devices: int = 0,
    memory: MemoryModel | None = None,
    ranks: int | None = None,
    splits: Collection[str] = (),
    degrees: AllowedDegrees = ANY_DEGREES,
    policies: Collection[str] | None = None,
) -> tuple[list[Option], Counter[str]]:
    """Options worth simulating, simplest policy first; and the number of options rejected by each reason.

    Groups of several ranks are options, too, where the profile knows them. `ranks`: only options in which every group
    that this many ranks can divide is divided. `draft_devices`: further ones of another kind, which a draft has to
    itself; if there are none, it shares the others. `splits`: only options on these splits. `degrees` and `policies`
    restrict the search; options that `degrees` excludes are counted, other policies are not. An option must fit (where
    `memory` says what devices hold) and be priced by the profile. It is dropped if the same shape on another split of
    no more devices has every forward of a round no slower, and some faster.
    """
    feasible: list[Option] = []
    rejected: Counter[str] = Counter()
    fit = Fit(trace)
    checks = _Checks(profile, trace, memory)
    cluster = ClusterSpec(device=memory.device, num_devices=num_devices) if memory else None
    places = Places(
        latencies=profile.latencies,
        cluster=cluster,
        num_devices=num_devices,
        draft_devices=draft_devices,
        ranks=ranks,
        splits=splits,
    )
    for policy_class in policy_classes(policies):
        for policy in map(fit, policy_class.search_space()):
            there, reasons = places.of(policy)
            rejected.update({f"{policy.name}: {reason}": count for reason, count in reasons.items()})
            placed = []
            for option in there:
                if (reason := degrees.objection(option) or checks.objection(option)) is None:
                    placed.append(option)
                else:
                    rejected[reason] += 1
            kept = checks.undominated(placed)
            feasible += kept
            if len(kept) < len(placed):
                rejected[f"{policy.name}: another split of no more devices is faster"] += len(placed) - len(kept)
    return feasible, rejected


def longest_context(trace: AcceptanceTrace) -> int:
    """Tokens of the longest request, its output included."""
    return max(prompt.prompt_length + len(prompt.target_tokens) for prompt in trace.prompts)


class _Checks:
    """Reasons against options, by lookup rather than search: there may be tens of thousands of options."""

    def __init__(self, profile: Profile, trace: AcceptanceTrace, memory: MemoryModel | None) -> None:
        self._guessers = trace.guessers
        self._draft_kind = trace.draft_kind
        self._has_text = trace.has_text
        self._memory = memory
        self._longest = longest_context(trace)
        latencies = profile.latencies
        self._has_apart = latencies.apart is not None
        self._grids: dict[_Steps, list[tuple[int, int]]] = {}
        self._means: dict[_Steps, dict[tuple[bool, bool, int, int], float]] = {}
        known = [(False, table, grid) for table, grid in latencies.steps.items()]
        if latencies.apart is not None:
            known += [(True, table, grid) for table, grid in latencies.apart.steps.items()]
        for is_apart, (role, phase, degree, busy, cold, num_ranks), grid in known:
            key = (role, phase, degree, num_ranks, is_apart)
            self._grids.setdefault(key, []).extend(grid.grid)
            means = zip(grid.grid, grid.means_s().tolist(), strict=True)
            self._means.setdefault(key, {}).update({(busy, cold, *point): mean_s for point, mean_s in means})
        self._farthest = {key: tuple(np.max(points, axis=0).tolist()) for key, points in self._grids.items()}
        self._lacks: dict[tuple[object, Split], bool] = {}
        self._compared: dict[tuple[_Steps, _Steps], tuple[bool, bool]] = {}
        self._undominated: dict[tuple[object, ...], frozenset[Split]] = {}

    def _steps(self, option: Option, role: Role, phase: Phase) -> _Steps:
        is_apart = self._has_apart and role is Role.DRAFT and option.policy.layout is Layout.DISAGGREGATED
        return role, phase, option.degree(role), option.num_ranks(role), is_apart

    def objection(self, option: Option) -> str | None:
        """Reason why an option does not fit or cannot be priced; None if neither applies."""
        policy = option.policy
        if (reason := self._unsuited(policy)) is not None:
            return reason
        if self._memory is not None and (reason := self._misplaced(option, self._memory)):
            return reason
        for role, forward, most_rows in _forwards(policy):
            for phase in (Phase.PREFILL, forward):
                if self._steps(option, role, phase) not in self._grids:
                    ranks = option.num_ranks(role)
                    where = _devices(option.degree(role)) + (f" of {ranks} ranks" if ranks > 1 else "")
                    return f"{policy.name}: the {role}'s {phase} steps were not measured on {where}"
            farthest_rows, farthest_context = self._farthest[self._steps(option, role, forward)]
            if most_rows > (limit := MAX_ROWS_FACTOR * farthest_rows):
                return (
                    f"{policy.name}: more than {limit} rows in one {role} forward, {MAX_ROWS_FACTOR} x those measured"
                )
            if self._longest > (limit := MAX_CONTEXT_FACTOR * farthest_context) > 0:
                return f"{policy.name}: the trace's context of {self._longest} is over {limit}, {_CONTEXT_RULE}"
        return None

    def _misplaced(self, option: Option, memory: MemoryModel) -> str | None:
        """Reason why devices cannot hold an option, or are too far apart for it."""
        policy = option.policy
        key = (policy.layout, policy.target_groups, policy.target_rows, policy.draft_rows, sends_features(policy))
        if (lacks := self._lacks.get((key, option.split_key))) is None:
            lacks = self._lacks[key, option.split_key] = memory.deficit(option, context=self._longest) > 0
        if lacks:
            group = max(memory.groups(option, context=self._longest), key=lambda group: group.used_bytes)
            held = " and ".join(f"the {role}" for role in group.weights_bytes)
            copies = f" of {policy.target_groups} groups" if policy.target_groups > 1 else ""
            used, usable = (gigabytes(size, decimals=0) for size in (group.used_bytes, group.usable_bytes))
            where = _devices(option.degree(min(group.weights_bytes)))
            return f"{policy.name}: does not fit with {held} on {where}{copies}, {used} of {usable} each"
        devices = [device for group in option.groups.values() for device in group]
        num_nodes = len({device // memory.device.devices_per_node for device in devices})
        if num_nodes > 1 and sends_features(policy):
            return f"{policy.name}: hidden states would be sent between nodes, over links that are not known"
        return None

    def _unsuited(self, policy: Policy) -> str | None:
        """Reason why a policy does not work with these models and this trace, whatever its split."""
        if self._memory is not None and self._memory.is_recurrent and policy.verifies_trees:
            return f"{policy.name}: the target keeps a state, of which a tree needs one for every branch"
        if policy.drafts_from_text and not self._has_text:
            return f"{policy.name}: a synthesised trace has no text to draft from"
        if self._draft_kind not in policy.drafts:
            return f"{policy.name}: not with a {self._draft_kind} draft{lacks_mask(policy, self._draft_kind)}"
        if missing := _guessers(policy) - self._guessers:
            return f"{policy.name}: the trace does not say what {_GUESSER_NAMES[min(missing)]} guesses; record it again"
        return None

    def undominated(self, options: Sequence[Option]) -> list[Option]:
        """Placements of one shape, without those that another one beats in everything."""
        if not options:
            return []
        # Shapes that issue the same forwards on the same groups compare alike.
        forwards = tuple((role, phase) for role, phase, _ in _forwards(options[0].policy))
        key = (forwards, options[0].policy.target_groups, tuple(option.split_key for option in options))
        if key not in self._undominated:
            kept = (one for one in options if not any(self._beats(other, one) for other in options))
            self._undominated[key] = frozenset(option.split_key for option in kept)
        return [option for option in options if option.split_key in self._undominated[key]]

    def _beats(self, one: Option, other: Option) -> bool:
        """Whether `one` has every forward of a round no slower, and some faster, on no more devices."""
        if one.num_devices > other.num_devices:
            return False
        compared = [
            self._compare(self._steps(one, role, phase), self._steps(other, role, phase))
            for role, phase, _ in _forwards(one.policy)
        ]
        return all(no_slower for no_slower, _ in compared) and any(faster for _, faster in compared)

    def _compare(self, one: _Steps, other: _Steps) -> tuple[bool, bool]:
        """Whether a step is nowhere slower on one group than on another, and whether it is faster somewhere."""
        key = (one, other)
        if key not in self._compared:
            ours, theirs = self._means[one], self._means[other]
            no_slower = ours.keys() == theirs.keys() and all(ours[point] <= theirs[point] for point in theirs)
            self._compared[key] = no_slower, no_slower and ours != theirs
        return self._compared[key]


_CONTEXT_RULE = f"{MAX_CONTEXT_FACTOR} x that measured"
_GUESSER_NAMES = {Guesser.FUZZY: "a draft with its layers in groups", Guesser.EXIT: "the first half of the target"}


def _guessers(policy: Policy) -> set[Guesser]:
    """Guessers other than the draft."""
    return {guesser for guesser, asked in ((Guesser.FUZZY, policy.fuzzy), (Guesser.EXIT, policy.exits)) if asked}


def _forwards(policy: Policy) -> Iterator[tuple[Role, Phase, int]]:
    """Forwards that a policy issues: role, phase and most rows."""
    for phase in (Phase.EXIT, Phase.FINISH) if policy.exits else (Phase.VERIFY,):
        yield Role.TARGET, phase, policy.target_rows
    if policy.layout is not Layout.TARGET_ONLY:
        for phase in (Phase.EXPAND, Phase.FUZZY) if policy.fuzzy else (Phase.EXPAND,):
            yield Role.DRAFT, phase, policy.expand_rows


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
