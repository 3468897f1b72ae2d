"""Latency of each forward and effect, drawn from a Profile and added up by provenance. No SimPy, policy or torch here.

A forward costs one of the quantiles of `Profile.step`, drawn with equal chances, so that its mean is the measured mean;
every sequence beyond the first adds what the profile's sharing costs say.
Host time comes from `Profile.host_latency`: before a forward it is the time in which the program runs and the driver
prepares (a fruitless poll included), and lies between spans; for a send, a compaction and a commit it is the whole
effect, including the program's time before it, and is the span. Receiving costs nothing: the hop is charged to the
message, and a message that comes while its receiver computes makes that forward longer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.simulator.random_streams import uniforms
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase
from swiftspec.timing.warm_up import RecentForwards, WarmUpCost, WeightCache

# This many context lengths share a price, that of their middle; an empty context has its own.
_CONTEXT_STEP = 16
_FREE = Latency((0.0,), Provenance.ASSUMED)
_OF_DRAFT = frozenset({Phase.EXPAND, Phase.FUZZY, Phase.SEND, Phase.WAIT, Phase.ARRIVE, Phase.COMPACT})


def priced_context(context: int) -> int:
    """The context whose price those near it share."""
    return max(0, -(-context // _CONTEXT_STEP) * _CONTEXT_STEP - _CONTEXT_STEP // 2)


class LatencyDraw(NamedTuple):
    """Distribution that a charged latency is drawn from, and the provenance of each share of its seconds."""

    quantiles_s: tuple[float, ...]
    shares: tuple[tuple[Provenance, float], ...]

    @classmethod
    def of(cls, latency: Latency) -> "LatencyDraw":
        return cls(latency.quantiles_s, tuple(latency.shares.items()))

    def longer_by(self, seconds: float, provenance: Provenance) -> "LatencyDraw":
        """The same distribution, shifted by some seconds of their own provenance."""
        mean_s = sum(self.quantiles_s) / len(self.quantiles_s)
        shares = {known: share * mean_s / (mean_s + seconds) for known, share in self.shares}
        shares[provenance] = shares.get(provenance, 0.0) + seconds / (mean_s + seconds)
        return LatencyDraw(tuple(quantile_s + seconds for quantile_s in self.quantiles_s), tuple(shares.items()))


class LatencyTable:
    """A profile's latencies, each looked up once. Holds no randomness, so many simulations may share one."""

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self._forwards: dict[StepKey, LatencyDraw] = {}
        self._host: dict[tuple[str, Phase, int], LatencyDraw] = {}

    @cached_property
    def apart(self) -> "LatencyTable":
        """Those of a draft on devices of its own."""
        apart = self.latencies.apart
        return self if apart is None else LatencyTable(apart)

    def forward(self, key: StepKey) -> LatencyDraw:
        """A whole forward over the rows of some sequences.

        What further sequences cost is `assumed` to be nothing if the profile does not know it. ValueError if the
        profile lacks this phase, degree or number of ranks.
        """
        cost = self._forwards.get(key)
        if cost is None:
            priced = key._replace(context=priced_context(key.context))
            cost = LatencyDraw.of(self.latencies.step(priced))
            if key.sequences > 1:
                cost = cost.longer_by(*self.latencies.further_sequences(priced))
            self._forwards[key] = cost
        return cost

    def host(self, phase: Phase, rows: int, *, policy: str) -> LatencyDraw:
        """Host time of a policy's effect; what the profile lacks is free, and `assumed`."""
        key = (policy, phase, rows)
        cost = self._host.get(key)
        if cost is None:
            latency = self.latencies.host_latency(phase, rows=max(1, rows), policy=policy) or _FREE
            cost = self._host[key] = LatencyDraw.of(latency)
        return cost


class LatencySampler:
    """Draws the latencies of one policy's requests and records their provenance.

    policy: its name, for its own host time. layout: whether its draft has devices of its own. degrees, ranks: devices
    of each role's group, and the processes that divide them, as in `StepPoint`; one if not given.

    seconds: seconds charged so far by provenance, both roles together. A provenance with 0 s occurred and cost nothing,
    such as host times that the profile lacks, as `assumed`.
    """

    def __init__(
        self,
        prices: LatencyTable,
        *,
        policy: str = "",
        layout: Layout = Layout.COLOCATED,
        degrees: Mapping[Role, int],
        ranks: Mapping[Role, int] | None = None,
    ) -> None:
        self._prices = prices
        self._draft_prices = prices.apart if layout is Layout.DISAGGREGATED else prices
        self._policy = policy
        self.degrees = dict(degrees)
        self.ranks = dict.fromkeys(Role, 1) | dict(ranks or {})
        self._draws: dict[Phase, Callable[[], float]] = {}
        self._scales: Mapping[Role, float] = {}
        self.seconds: dict[Provenance, float] = {}

    def seed(self, *entropy: int, scales: Mapping[Role, float] | None = None) -> None:
        """Start a request. Each phase has its own stream, so policies with the same seed get much the same noise.

        scales: factors of the profile's latencies of each role's forwards during this request.
        """
        self._draws = {phase: uniforms((*entropy, number)) for number, phase in enumerate(Phase, start=1)}
        self._scales = scales or {}

    def forward(self, key: StepKey, *, warm_up_s: float = 0.0) -> float:
        """Seconds of one forward. warm_up_s: of which it takes longer after a pause."""
        cost = self._of(key.role).forward(key)
        if warm_up_s:
            cost = cost.longer_by(warm_up_s, Provenance.INTERPOLATED)
        return self._charge(key.phase, cost, scale=self._scales.get(key.role, 1.0))

    def warm_up(self, role: Role) -> WarmUpCost | None:
        """Cost of pauses for a role's forwards, if there is any."""
        return self._of(role).latencies.warm_up.get((role, self.degrees.get(role, 1), self.ranks[role]))

    def host(self, phase: Phase, rows: int = 1) -> float:
        """Seconds that a process spends around an effect."""
        return self._charge(phase, self._around(phase).host(phase, rows, policy=self._policy))

    def hosts(self, phase: Phase, rows: Sequence[int]) -> float:
        """Sum of `host` for one request after another, whose provenance is not recorded."""
        draw, policy, prices = self._draws[phase], self._policy, self._around(phase)
        total_s = 0.0
        for each in rows:
            quantiles_s = prices.host(phase, each, policy=policy).quantiles_s
            total_s += quantiles_s[int(draw() * len(quantiles_s))]
        return total_s

    def together(self, num_requests: int) -> float:
        """Host time of an effect of requests that share steps, over that of one that is alone."""
        return (1 + (num_requests - 1) * self._prices.latencies.host_share) / num_requests

    def _of(self, role: Role) -> LatencyTable:
        return self._draft_prices if role is Role.DRAFT else self._prices

    def _around(self, phase: Phase) -> LatencyTable:
        """That of the host of a draft's forwards and messages, or of a target's."""
        return self._draft_prices if phase in _OF_DRAFT else self._prices

    def _charge(self, phase: Phase, cost: LatencyDraw, *, scale: float = 1.0) -> float:
        quantiles_s, shares = cost
        drawn_s = scale * quantiles_s[int(self._draws[phase]() * len(quantiles_s))]
        seconds = self.seconds
        for provenance, share in shares:
            seconds[provenance] = seconds.get(provenance, 0.0) + drawn_s * share
        return drawn_s


class ForwardTimes:
    """Draws latencies, longer after a pause or after the other model's forwards, which evict weights from caches."""

    def __init__(self, meter: LatencySampler, *, now_s: float = 0.0) -> None:
        self._meter = meter
        self._recent = RecentForwards()
        costs = {model: meter.warm_up(model) for model in Role}
        self._caches = {model: WeightCache(cost, now_s=now_s) for model, cost in costs.items() if cost is not None}

    def begin(
        self,
        phase: Phase,
        model: Role,
        *,
        rows: int,
        context: int,
        sequences: int = 1,
        peer_busy: bool = False,
        now_s: float,
    ) -> float:
        """Seconds of a forward that begins now. context: slots that a row attends to, in the mean."""
        cache = self._caches.get(model)
        meter = self._meter
        cold = self._recent.is_cold(model, now_s=now_s)
        degree, ranks, context = meter.degrees[model], meter.ranks[model], priced_context(context)
        key = StepKey(model, phase, degree, rows, context, sequences, ranks, peer_busy, cold)
        return meter.forward(key, warm_up_s=cache.begin(phase, rows, now_s=now_s, cold=cold) if cache else 0.0)

    def end(self, phase: Phase, model: Role, *, rows: int, now_s: float) -> None:
        """Count the forward that began last, and ends now."""
        self._recent.note(model, now_s=now_s)
        cache = self._caches.get(model)
        if cache:
            cache.end(phase, rows, now_s=now_s)
