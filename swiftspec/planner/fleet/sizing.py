"""Number of replicas of each kind that a load needs: sweeps over loads, then bisection of the kinds that may win.

The best kind of every place to draft is bisected. Any other kind has to show that it needs fewer devices than the best
so far, or as many and is faster: one simulation is usually enough to see that it does not.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from swiftspec.artifacts.fleet import LoadPoint
from swiftspec.planner.fleet.load_simulations import LoadSimulations, Simulation, Task
from swiftspec.planner.fleet.replica import Kind

# Attainment below which a load is too high even if the few requests of a sweep were bad luck.
_TOO_HIGH = 0.85
_LEAST_COUNTED = 16  # requests of a simulation
_NEARLY_BEST = 1.25  # times the devices of the best: beyond, nobody asks for the exact number
_MOST_ROUNDS = 12
_EPSILON = 1e-9


@dataclass(slots=True, kw_only=True)
class Bracket:
    """A kind, and what is known of the number of its replicas that a load needs.

    points: by requests per second and device.
    exact: by number of replicas that share the whole load, from longer simulations.
    low, high: most replicas that are too few, and fewest that are enough; None if no number is known to be.
    doubtful: most replicas, not fewer than `low`, that seem too few after a short simulation.
    retry: replicas for the lowest simulated load, if few requests missed the limits there: with more requests it may
        pass.
    """

    kind: Kind
    points: dict[float, LoadPoint] = field(default_factory=dict)
    exact: dict[int, LoadPoint] = field(default_factory=dict)
    low: int = 0
    high: int | None = None
    doubtful: int = 0
    retry: int | None = None

    @property
    def all_points(self) -> tuple[LoadPoint, ...]:
        """By ascending load; longer simulations instead of shorter ones of the same load, or that they refute."""
        kept = max((point.rate for point in self.exact.values() if point.keeps), default=0.0)
        short = [point for point in self.points.values() if point.keeps or point.rate > kept]
        of_rate = {point.rate: point for point in (*short, *self.exact.values())}
        return tuple(of_rate[rate] for rate in sorted(of_rate))

    @property
    def least_devices(self) -> int:
        """Lower bound of the devices that the load needs."""
        return (self.low + 1) * self.kind.num_devices

    @property
    def devices(self) -> float:
        """Devices of the fewest replicas known to be enough; infinite if there are none."""
        return math.inf if self.high is None else self.high * self.kind.num_devices

    @property
    def is_fewest(self) -> bool:
        """Whether one replica less is known to be too few."""
        return self.high is not None and self.high == self.low + 1 and self.high in self.exact

    @property
    def best_point(self) -> LoadPoint | None:
        """The highest load of the sweep that it serves within the limits."""
        keeping = [point for point in self.points.values() if point.keeps]
        return max(keeping, key=lambda point: point.rate, default=None)

    def bound(self, rate: float) -> None:
        """Bounds from the simulated loads: whoever keeps the limits at a load does so at lower ones."""
        last = self.points[max(self.points)]  # the only one that may have missed the limits
        replicas = math.floor(rate / last.rate + _EPSILON)
        best = self.best_point
        if best is None and _is_uncertain(last):
            self.retry = math.ceil(rate / last.rate - _EPSILON)
            self.doubtful = self.retry - 1
        if best is None:
            return
        self.high = math.ceil(rate / best.rate - _EPSILON)
        if not last.keeps:
            self.doubtful = min(self.high - 1, replicas)
            self.low = 0 if _is_uncertain(last) else self.doubtful

    def note(self, count: int, point: LoadPoint) -> None:
        """Learn from a simulation of so many replicas."""
        self.exact[count] = point
        if point.keeps:
            self.high = count if self.high is None else min(self.high, count)
            self.low = min(self.low, self.high - 1)
            if self.doubtful >= self.high:
                self.doubtful = self.low
            return
        self.low = max(self.low, count)
        self.doubtful = max(self.doubtful, self.low)
        if self.high is not None and self.high <= count:
            enough = [other for other, found in self.exact.items() if found.keeps and other > count]
            self.high = min(enough, default=count + max(1, count // 8))  # to be tried next

    @property
    def next_count(self) -> int | None:
        """The number of replicas to try next; None if the fewest are known."""
        if self.high is None:
            return None
        if self.high - self.doubtful > 1:
            return (self.doubtful + self.high) // 2
        if self.high not in self.exact:
            return self.high
        return None if self.high == self.low + 1 else self.high - 1

    def below(self, devices: float, *, is_faster: bool) -> int | None:
        """A number of replicas on fewer devices, or if it is faster on as many; None if it is known to need more."""
        if self.high is None and self.retry is None:
            return None
        count = math.ceil(devices / self.kind.num_devices) - 1
        if is_faster and (count + 1) * self.kind.num_devices == devices and count + 1 not in self.exact:
            count += 1
        if count <= self.low:
            return None
        return count if self.high is None or count < self.high else self.next_count


@dataclass(frozen=True, slots=True)
class Sizing:
    """Simulations that tell how many replicas of each kind a load needs.

    rate: requests per second of the whole load.
    output_tokens: mean of a request.
    batch: estimate of the requests that a replica of a kind has at once, at a rate.
    room: cache blocks of a kind's targets.
    """

    simulated: LoadSimulations
    rate: float
    output_tokens: float
    batch: Callable[[Kind, float], float]
    room: Callable[[Kind], int | None]

    def task(self, kind: Kind, rate: float, tokens: float) -> Task:
        """A simulation in which requests of so many output tokens are counted, beside the first and the last."""
        counted = max(kind.num_targets * _LEAST_COUNTED, tokens / self.output_tokens)
        num_requests = math.ceil(counted + 2 * self.batch(kind, rate))
        return Task(kind.candidate, kind.replicas, rate, num_requests, self.room(kind), kind.control)

    def sweep(self, kinds: Sequence[Kind], loads: Sequence[float], *, tokens: float, what: str) -> list[Bracket]:
        """Every kind at ascending loads per device, up to the first one at which it misses the limits."""
        found = [Bracket(kind=kind) for kind in kinds]
        alive = list(found)
        for number, load in enumerate(loads):
            tasks = [self.task(one.kind, load * one.kind.num_devices, tokens) for one in alive]
            ahead = len(alive) * (len(loads) - number - 1) // 2
            for one, simulation in zip(alive, self.simulated.run(tasks, what, ahead=ahead), strict=True):
                one.points[load] = simulation.point
            alive = [one for one in alive if one.points[load].keeps]
        for one in found:
            one.bound(self.rate)
        return found

    def settle(self, brackets: Sequence[Bracket], *, tokens: float, may_win: Callable[[Bracket], bool]) -> None:
        """Find the fewest replicas of whichever kind needs the fewest devices, and of the best for every layout.

        may_win: whether a kind with its number of replicas may be chosen. Those that may not rule nobody else out.
        """
        for _ in range(_MOST_ROUNDS):
            known = [one for one in brackets if one.high in one.exact and may_win(one)]
            best = min((one.devices for one in known), default=math.inf)
            winners = [one for one in known if one.devices == best]
            counts = [
                (one, count) for one in brackets if (count := self._next_count(one, brackets, winners)) is not None
            ]
            if not counts:
                return
            self.measure(counts, tokens=tokens, what="replicas")

    def _next_count(self, one: Bracket, brackets: Sequence[Bracket], winners: Sequence[Bracket]) -> int | None:
        """The number of replicas of a kind to try next; None if it is known, or of no interest."""
        best = min((winner.devices for winner in winners), default=math.inf)
        if not _is_best_shape(one, brackets) and not any(one.kind.cell == winner.kind.cell for winner in winners):
            return None
        if one.high is not None and (_leads_layout(one, brackets) or one.kind.control):
            return one.next_count if one.least_devices <= _NEARLY_BEST * best else None
        if not winners:
            is_last = one.low == 0 and all(other.high is None for other in brackets)
            return one.retry if is_last else None
        # On as many devices only who is faster may still win.
        fastest = max(winner.kind.tokens_per_s for winner in winners)
        return one.below(best, is_faster=one.kind.tokens_per_s > fastest)

    def measure(self, counts: Iterable[tuple[Bracket, int]], *, tokens: float, what: str) -> list[Simulation]:
        counts = list(counts)
        tasks = [self.task(one.kind, self.rate / count, tokens) for one, count in counts]
        simulations = self.simulated.run(tasks, what)
        for (one, count), found in zip(counts, simulations, strict=True):
            one.note(count, found.point)
        return simulations


def _is_best_shape(one: Bracket, brackets: Sequence[Bracket]) -> bool:
    """Whether no other shape of the policy on the split has served a higher load of the sweep, or users faster."""
    return max((other for other in brackets if other.kind.cell == one.kind.cell), key=_rank) is one


def _rank(one: Bracket) -> tuple[float, float]:
    point = one.best_point
    return (0.0, 0.0) if point is None else (point.rate, point.user_tokens_per_s)


def _leads_layout(one: Bracket, brackets: Sequence[Bracket]) -> bool:
    """Whether nobody with the same place to draft needs fewer devices, of the best shapes."""
    layout = one.kind.option.policy.layout
    shapes = [
        other
        for other in brackets
        if other.kind.option.policy.layout is layout and not other.kind.control and _is_best_shape(other, brackets)
    ]
    return bool(shapes) and min(shapes, key=lambda other: (other.devices, -other.kind.tokens_per_s)) is one


def _is_uncertain(point: LoadPoint) -> bool:
    return point.keeps_up and point.attained >= _TOO_HIGH
