"""Number of replicas of each kind that a load needs: sweeps over loads, then bisection."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from swiftspec.artifacts.fleet import LoadPoint
from swiftspec.planner.fleet.kinds import Kind
from swiftspec.planner.fleet.simulated import Simulated, Simulation, Task

__all__ = ["Sized", "Sizing"]

# Attainment below which a load is too high even if the few requests of a sweep were bad luck.
_HOPELESS = 0.85
_LEAST_COUNTED = 16  # requests of a simulation
_NEARLY_BEST = 1.25  # times the devices of the best: beyond, nobody asks for the exact number
_MOST_ROUNDS = 12
_EPSILON = 1e-9


@dataclass(slots=True, kw_only=True)
class Sized:
    """A kind and what is known of it.

    Attributes
    ----------
    points : dict
        By requests per second and device.
    exact : dict
        By number of replicas that share the whole load, from longer simulations.
    low, high : int
        Most replicas that are too few, and fewest that are enough; None if no number is known to be.
    """

    kind: Kind
    points: dict[float, LoadPoint] = field(default_factory=dict)
    exact: dict[int, LoadPoint] = field(default_factory=dict)
    low: int = 0
    high: int | None = None

    @property
    def all_points(self) -> tuple[LoadPoint, ...]:
        """By ascending load; longer simulations instead of shorter ones of the same load."""
        of_rate = {point.rate: point for point in (*self.points.values(), *self.exact.values())}
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

    def bracket(self, rate: float) -> None:
        """Bounds from the simulated loads: whoever keeps the limits at a load does so at lower ones."""
        keeping = [point.rate for point in self.points.values() if point.keeps]
        if not keeping:
            return
        self.high = math.ceil(rate / max(keeping) - _EPSILON)
        failing = [point.rate for point in self.points.values() if not _is_hopeful(point) and point.rate > max(keeping)]
        if failing:
            self.low = min(self.high - 1, math.floor(rate / min(failing) + _EPSILON))

    def note(self, count: int, point: LoadPoint) -> None:
        """Learn from a simulation of so many replicas."""
        self.exact[count] = point
        if point.keeps:
            self.high = count if self.high is None else min(self.high, count)
            self.low = min(self.low, self.high - 1)
            return
        self.low = max(self.low, count)
        if self.high is not None and self.high <= count:
            enough = [other for other, found in self.exact.items() if found.keeps and other > count]
            self.high = min(enough, default=count + max(1, count // 8))  # to be tried next

    @property
    def next_count(self) -> int | None:
        """The number of replicas to try next; None if the fewest are known."""
        if self.high is None:
            return None
        if self.high not in self.exact:
            return self.high
        return None if self.high == self.low + 1 else (self.low + self.high) // 2


class Sizing:
    """Simulations that tell how many replicas of each kind a load needs.

    Parameters
    ----------
    simulated : Simulated
    rate : float
        Requests per second of the whole load.
    output_tokens : float
        Mean of a request.
    batch : callable
        Estimate of the requests that a replica of a kind has at once, at a rate.
    room : callable
        Cache blocks of a kind's targets.
    """

    def __init__(
        self,
        simulated: Simulated,
        *,
        rate: float,
        output_tokens: float,
        batch: Callable[[Kind, float], float],
        room: Callable[[Kind], int | None],
    ) -> None:
        self._simulated = simulated
        self._rate = rate
        self._output_tokens = output_tokens
        self._batch = batch
        self._room = room

    def task(self, kind: Kind, rate: float, tokens: float) -> Task:
        """A simulation in which requests of so many output tokens are counted, beside the first and the last."""
        # Each target of a pool has to be watched for as long as one that is alone.
        counted = kind.num_targets * max(_LEAST_COUNTED, tokens / self._output_tokens)
        num_requests = math.ceil(counted + 2 * self._batch(kind, rate))
        return Task(kind.candidate, kind.replicas, rate, num_requests, self._room(kind), kind.control)

    def sweep(self, kinds: Sequence[Kind], loads: Sequence[float], *, tokens: float, what: str) -> list[Sized]:
        """Every kind at ascending loads per device, until it is overloaded."""
        found = [Sized(kind=kind) for kind in kinds]
        alive = list(found)
        for number, load in enumerate(loads):
            tasks = [self.task(one.kind, load * one.kind.num_devices, tokens) for one in alive]
            ahead = len(alive) * (len(loads) - number - 1) // 2
            for one, simulation in zip(alive, self._simulated.run(tasks, what, ahead=ahead), strict=True):
                one.points[load] = simulation.point
            alive = [one for one in alive if _is_hopeful(one.points[load])]
        for one in found:
            one.bracket(self._rate)
        return found

    def settle(self, sized: Sequence[Sized], *, tokens: float, always: Callable[[Sized], bool]) -> None:
        """Find the fewest replicas of every kind that may need the fewest devices, and of those in `always`."""
        for _ in range(_MOST_ROUNDS):
            settled = [one for one in sized if one.is_fewest]
            best = min((one.devices for one in settled or sized), default=math.inf)
            # On as many devices only who is faster may still win.
            fastest = max((one.kind.tokens_per_s for one in settled if one.devices == best), default=0.0)
            open_ = [
                (one, count)
                for one in sized
                if (count := one.next_count) is not None
                and (
                    one.least_devices < best
                    or (one.least_devices == best and one.kind.tokens_per_s > fastest)
                    or (always(one) and one.least_devices <= _NEARLY_BEST * best)
                )
            ]
            if not open_:
                return
            self.measure(open_, tokens=tokens, what="replicas")

    def measure(self, counts: Iterable[tuple[Sized, int]], *, tokens: float, what: str) -> list[Simulation]:
        """Simulate kinds with so many replicas each."""
        counts = list(counts)
        tasks = [self.task(one.kind, self._rate / count, tokens) for one, count in counts]
        simulations = self._simulated.run(tasks, what)
        for (one, count), found in zip(counts, simulations, strict=True):
            one.note(count, found.point)
        return simulations


def _is_hopeful(point: LoadPoint) -> bool:
    return point.keeps_up and point.attained >= _HOPELESS
