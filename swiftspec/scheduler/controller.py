"""Controller of a device group: asks a control what to draft and verify, and learns from what came of it.

A round's rows are decided when its first request begins to draft, or, where drafting overlaps verification, when a step
is chosen. Now and then a round is served whole, since the acceptance of rows that are never verified cannot be learnt.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from swiftspec.errors import FieldError
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.steered import steered_programs
from swiftspec.scheduler.asks import Ask, equal_shares
from swiftspec.scheduler.calibration import Calibration
from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.costs import GroupCosts, MeasuredCosts, RoundCosts
from swiftspec.scheduler.survival import Survival

_FIRST_PAUSE, _LONGEST_PAUSE = 8, 16
_STEP_MEMORY = 0.9


@dataclass(slots=True)
class _Pace:
    """A request's limit on the time per token, and where it stands."""

    tpot_s: float | None
    first_s: float | None = None  # when it committed first
    num_after: int = 0  # tokens since its first one

    def tokens_due(self, at_s: float) -> float:
        """Tokens that it lacks at that time to be within its limit."""
        if self.tpot_s is None or self.first_s is None:
            return 0.0
        return (at_s - self.first_s) / self.tpot_s - self.num_after


@dataclass(frozen=True, slots=True)
class _LongerRound:
    """Costs of a round that takes some time beside what is to be decided; its drafting may be over."""

    costs: RoundCosts
    seconds: float
    is_drafted: bool = False

    def verify_s(self, num_sequences: int, num_rows: int) -> float:
        return self.seconds + self.costs.verify_s(num_sequences, num_rows)

    def level_s(self, level: int, num_sequences: int, /) -> float:
        return 0.0 if self.is_drafted else self.costs.level_s(level, num_sequences)


class Steering(NamedTuple):
    """A control, and the costs that it weighs: a controller that is still to be made."""

    control: Control
    costs: GroupCosts

    @classmethod
    def of(cls, policy: Policy, control: Control, costs: GroupCosts | None) -> Self:
        """Steering of a policy. ValueError if its verifications cannot be cut, or its costs are unknown."""
        if not policy.elastic:
            raise FieldError("policy", f"{policy.name}, whose verifications cannot be cut", "no control can steer it")
        if costs is None:
            raise ValueError(f"the plan lacks the costs of {policy.name}'s steps, which a control needs; plan again")
        return cls(control, costs)

    def controller(self, max_rows: int) -> "Controller":
        """A controller of a group whose steps have so many rows."""
        return Controller(self.control, self.costs, max_rows=max_rows)

    def programs(self, policy: Policy, request: Request) -> Mapping[Role, Program]:
        return steered_programs(policy, request)


class Controller:
    """A control with what it needs to know of a group's requests.

    costs: of the group's policy.
    max_rows: rows of a step.
    num_first: the first verifications with drafts, which are served whole.
    explore_every: steps from one that is served whole to the next; as of SmartSpec's released controller. Fewer at
        first: 8, then twice as many each time. While nothing is drafted otherwise, more: twice as many each time, up to
        16 times.
    """

    def __init__(
        self, control: Control, costs: GroupCosts, *, max_rows: int, num_first: int = 16, explore_every: int = 200
    ) -> None:
        self._control, self._costs, self._max_rows = control, MeasuredCosts(costs), max_rows
        self._explore_every = explore_every
        self._num_unknown = num_first
        self._pause = self._explore_at = explore_every  # in steps
        self._drafting_pause = min(_FIRST_PAUSE, explore_every)
        self._survival, self._calibration = Survival(), Calibration()
        self._last_log_probs: dict[int, tuple[float, ...]] = {}  # of the rows of each request in the last step
        self._paces: dict[int, _Pace] = {}
        self._tokens: dict[int, int] = {}  # in each request's cache
        self._planned: dict[int, int] = {}  # rows of each request's next verification
        self._num_steps = 0
        self._last_step_s: float | None = None
        self._last_granted: dict[int, int] = {}  # rows of each request in that step
        self._has_changed = True  # requests have come or gone since
        self._has_limits = False  # on the time per token
        self._step_s = 0.0  # from one verification of the group to the next

    def add(self, request: int, *, tpot_s: float | None) -> None:
        """Note a request that begins. tpot_s: its limit on the time per token."""
        self._paces[request] = _Pace(tpot_s)
        self._has_changed = True
        self._has_limits = self._has_limits or tpot_s is not None

    def remove(self, request: int) -> None:
        """Forget a request that has ended."""
        self._paces.pop(request, None)
        self._has_changed = True
        self._planned.pop(request, None)
        self._tokens.pop(request, None)
        self._survival.forget(request)

    def may_draft(self, request: int, level: int, now_s: float, /) -> bool:
        """Whether a request is to draft another level below its root."""
        if self._is_exploring:
            return True
        if request not in self._planned:
            self._planned = self._plan(self._paces, now_s)
        return level < self._planned[request]

    def shares(self, asks: Sequence[Ask], num_rows: int, now_s: float) -> Sequence[int]:
        """Rows of each of these verifications."""
        wanted = [ask.num_rows for ask in asks]
        if sum(wanted) == len(wanted):  # roots alone: nothing to decide
            return wanted
        if self._is_exploring:
            return equal_shares(wanted, num_rows)
        planned = [min(ask.num_rows, self._planned.get(ask.request, 0)) for ask in asks]
        weighs_drafts = self._control.weighs_drafts and any(ask.log_probs for ask in asks)
        if all(planned) and sum(planned) <= num_rows and not weighs_drafts:
            return planned
        demands = [self._demand(ask.request, ask.num_rows, now_s, ask.log_probs) for ask in asks]
        drafted_s = self._drafting_s(wanted) + self._cache_s([ask.request for ask in asks])
        drafted = _LongerRound(self._costs, drafted_s, is_drafted=True)
        return self._control.rows(demands, costs=drafted, max_rows=num_rows)

    def note_step(self, granted: Sequence[tuple[Ask, int]], now_s: float) -> None:
        """Note that a verification begins, with the rows of each request."""
        rows = {ask.request: num_rows for ask, num_rows in granted}
        self._last_log_probs = {ask.request: ask.log_probs[: num_rows - 1] for ask, num_rows in granted}
        self._note_round(rows, now_s)
        num_drafted = sum([num_rows > 1 for num_rows in rows.values()])
        self._num_unknown -= num_drafted
        if not num_drafted:
            pass  # an exploration waits for requests that draft
        elif self._num_steps >= self._explore_at:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE * self._explore_every)
            self._drafting_pause = min(2 * self._drafting_pause, self._explore_every)
            self._explore_at = self._num_steps + self._pause
        elif not self._is_exploring:
            self._pause = self._explore_every
            self._explore_at = min(self._explore_at, self._num_steps + self._drafting_pause)
        # Without drafts nothing is learnt: what was planned stands for the same requests, unless limits come closer.
        if num_drafted or self._has_changed or self._has_limits:
            self._planned = {}
        self._num_steps += 1
        if self._last_step_s is not None:
            since_s = now_s - self._last_step_s
            self._step_s = _STEP_MEMORY * self._step_s + (1 - _STEP_MEMORY) * since_s if self._step_s else since_s
        self._last_step_s, self._last_granted, self._has_changed = now_s, rows, False

    def _note_round(self, rows: Mapping[int, int], now_s: float) -> None:
        """Note what the last verification and the drafting of this one took, if nothing else was done meanwhile."""
        last = self._last_granted
        if self._last_step_s is None or self._has_changed or last.keys() != rows.keys():
            return
        self._costs.note(
            len(last),
            sum(last.values()),
            others_s=self._drafting_s(list(rows.values())) + self._cache_s(last),
            seconds=now_s - self._last_step_s,
        )

    def note_accepted(self, request: int, rows: Collection[int]) -> None:
        """Note which rows of a request's verification were accepted, the root included."""
        num_rows = self._last_granted.get(request, 1)
        if num_rows > 1:  # the root is always accepted
            self._survival.note(request, num_rows, rows)
            log_probs = self._last_log_probs.get(request)
            if log_probs and self._control.weighs_drafts:
                self._calibration.note(log_probs, rows)

    def note_commit(self, request: int, num_tokens: int, now_s: float) -> None:
        self._tokens[request] = self._tokens.get(request, 0) + num_tokens
        pace = self._paces[request]
        if pace.first_s is None:
            pace.first_s, num_tokens = now_s, num_tokens - 1
        pace.num_after += num_tokens

    def note_read(self, request: int, num_tokens: int) -> None:
        """Note that so many tokens of a request's text have been read by the target."""
        self._tokens[request] = num_tokens

    @property
    def _is_exploring(self) -> bool:
        return self._num_unknown > 0 or (self._control.learns and self._num_steps >= self._explore_at)

    def _plan(self, requests: Iterable[int], now_s: float) -> dict[int, int]:
        numbers = list(requests)
        demands = [self._demand(number, self._survival.most_rows, now_s) for number in numbers]
        costs = _LongerRound(self._costs, self._cache_s(numbers))
        rows = self._control.rows(demands, costs=costs, max_rows=self._max_rows)
        return dict(zip(numbers, rows, strict=True))

    def _demand(self, request: int, num_rows: int, now_s: float, log_probs: Sequence[float] = ()) -> Demand:
        if log_probs and self._control.weighs_drafts:
            survival = self._calibration.of(log_probs)
        else:
            survival = self._survival.of(request, num_rows)
        return Demand(survival, self._paces[request].tokens_due(now_s + self._step_s))

    def _cache_s(self, requests: Collection[int]) -> float:
        """What these requests' caches add to a verification, beyond those of the usual context."""
        tokens = [self._tokens[request] for request in requests if request in self._tokens]
        return self._costs.cache_s(len(tokens), sum(tokens)) if tokens else 0.0

    def _drafting_s(self, rows: Sequence[int]) -> float:
        """Seconds that drafting took, for so many rows of each request."""
        costs, seconds, level = self._costs, 0.0, 1
        while num_drafting := sum(1 for count in rows if count > level):
            seconds += costs.level_s(level, num_drafting)
            level += 1
        return seconds
