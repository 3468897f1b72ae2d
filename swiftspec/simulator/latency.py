"""Latency of each effect, drawn from a Profile and added up by provenance. No SimPy, policy or torch here.

A forward costs one of the quantiles of `Profile.step`, drawn with equal chances, so that its mean is the measured mean;
every sequence beyond the first adds what the profile's sharing costs say.
Host time comes from `Profile.host_latency`: before a forward it is the time in which the program runs and the driver
prepares (a fruitless poll included), and lies between spans; for a send, a compaction and a commit it is the whole
effect, including the program's time before it, and is the span. Receiving costs nothing: the hop is charged to the
message, and a message that comes while its receiver computes makes that forward longer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from swiftspec.policies.effects import Role
from swiftspec.simulator.random_streams import uniforms
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.steps import Latencies, hop_rows
from swiftspec.timing.timeline import Phase
from swiftspec.timing.warm_up import WarmUpCost

__all__ = ["LatencyDraw", "LatencySampler", "LatencyTable"]

# This many context lengths share a price, that of their middle; an empty context has its own.
_CONTEXT_STEP = 16
_FREE = Latency((0.0,), Provenance.ASSUMED)
# A further sequence costs in every layer. Sharing costs are those of whole forwards.
_SHARE_OF_LAYERS = {Phase.EXIT: 0.5, Phase.FINISH: 0.5}


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
    """A profile's latencies, each looked up once. Holds no randomness, so many simulations may share one.

    Attributes
    ----------
    latencies : Latencies
    host_share : float
        Share of one request's host time that each further request of a step adds.
    """

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self.host_share = latencies.host_share
        self._forwards: dict[tuple[Role, Phase, int, int, bool, bool, int, int, int], LatencyDraw] = {}
        self._host: dict[tuple[str, Phase, int], LatencyDraw] = {}

    def forward(
        self,
        role: Role,
        phase: Phase,
        *,
        degree: int,
        peer_busy: bool,
        rows: int,
        context: int,
        cold: bool = False,
        ranks: int = 1,
        sequences: int = 1,
    ) -> LatencyDraw:
        """A whole forward over the rows of some sequences, at their mean context.

        What further sequences cost is `assumed` to be nothing if the profile does not know it. ValueError if the
        profile lacks this phase, degree or number of ranks.
        """
        step = -(-context // _CONTEXT_STEP)
        key = (role, phase, degree, ranks, peer_busy, cold, rows, step, sequences)
        cost = self._forwards.get(key)
        if cost is None:
            middle = max(0, step * _CONTEXT_STEP - _CONTEXT_STEP // 2)
            latency = self.latencies.step(
                phase, role=role, degree=degree, ranks=ranks, peer_busy=peer_busy, cold=cold, rows=rows, context=middle
            )
            cost = LatencyDraw.of(latency)
            if sequences > 1:
                each_s, provenance = self.latencies.further_sequence(
                    role, degree=degree, ranks=ranks, peer_busy=peer_busy, context=middle
                )
                cost = cost.longer_by((sequences - 1) * each_s * _SHARE_OF_LAYERS.get(phase, 1.0), provenance)
            self._forwards[key] = cost
        return cost

    def warm_up(self, role: Role, *, degree: int, ranks: int) -> WarmUpCost | None:
        """Cost of pauses for a group's forwards, if there is any."""
        return self.latencies.warm_up.get((role, degree, ranks))

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

    Parameters
    ----------
    prices : LatencyTable
    policy : str
        Its name, for its own host time.
    degrees, ranks : mapping
        Devices of each role's group, and the processes that divide them, as in `StepPoint`; one if not given.

    Attributes
    ----------
    seconds : dict
        Seconds charged so far by provenance, both roles together. A provenance with 0 s occurred and cost nothing, such
        as host times that the profile lacks, as `assumed`.
    """

    def __init__(
        self,
        prices: LatencyTable,
        *,
        policy: str = "",
        degrees: Mapping[Role, int],
        ranks: Mapping[Role, int] | None = None,
    ) -> None:
        self._prices = prices
        self._policy = policy
        self._degrees = dict(degrees)
        self._ranks = dict.fromkeys(Role, 1) | dict(ranks or {})
        self._draws: dict[Phase, Callable[[], float]] = {}
        self._scales: Mapping[Role, float] = {}
        self.seconds: dict[Provenance, float] = {}

    def seed(self, *entropy: int, scales: Mapping[Role, float] | None = None) -> None:
        """Start a request. Each phase has its own stream, so policies with the same seed get much the same noise.

        scales: factors of the profile's latencies of each role's forwards during this request.
        """
        self._draws = {phase: uniforms((*entropy, number)) for number, phase in enumerate(Phase, start=1)}
        self._scales = scales or {}

    def forward(
        self,
        role: Role,
        phase: Phase,
        *,
        peer_busy: bool,
        rows: int,
        context: int,
        cold: bool = False,
        sequences: int = 1,
        warm_up_s: float = 0.0,
    ) -> float:
        """Seconds of one forward, over the rows of some sequences at their mean context. warm_up_s: after a pause."""
        cost = self._prices.forward(
            role,
            phase,
            degree=self._degrees[role],
            ranks=self._ranks[role],
            peer_busy=peer_busy,
            cold=cold,
            rows=rows,
            context=context,
            sequences=sequences,
        )
        if warm_up_s:
            cost = cost.longer_by(warm_up_s, Provenance.INTERPOLATED)
        return self._charge(phase, cost, scale=self._scales.get(role, 1.0))

    def warm_up(self, role: Role) -> WarmUpCost | None:
        """Cost of pauses for a role's forwards, if there is any."""
        return self._prices.warm_up(role, degree=self._degrees.get(role, 1), ranks=self._ranks[role])

    def host(self, phase: Phase, rows: int = 1) -> float:
        """Seconds that a process spends around an effect."""
        return self._charge(phase, self._prices.host(phase, rows, policy=self._policy))

    def hosts(self, phase: Phase, rows: Sequence[int]) -> float:
        """Sum of `host` for one request after another, whose provenance is not recorded."""
        draw, policy, prices = self._draws[phase], self._policy, self._prices
        found = [prices.host(phase, each, policy=policy).quantiles_s for each in rows]
        return sum([quantiles_s[int(draw() * len(quantiles_s))] for quantiles_s in found])

    def together(self, num_requests: int) -> float:
        """Host time of an effect of requests that share steps, over that of one that is alone."""
        return (1 + (num_requests - 1) * self._prices.host_share) / num_requests

    def hop(self, num_features: int = 0) -> float:
        """Seconds from the end of a send until the peer can receive the message, and features of so many tokens."""
        return self.host(Phase.WAIT, hop_rows(num_features))

    def _charge(self, phase: Phase, cost: LatencyDraw, *, scale: float = 1.0) -> float:
        quantiles_s, shares = cost
        drawn_s = scale * quantiles_s[int(self._draws[phase]() * len(quantiles_s))]
        seconds = self.seconds
        for provenance, share in shares:
            seconds[provenance] = seconds.get(provenance, 0.0) + drawn_s * share
        return drawn_s
