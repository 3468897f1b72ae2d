"""Seconds of the forwards of one device group, which depend on what it computed before."""

from swiftspec.policies.effects import Role
from swiftspec.simulator.latency import LatencySampler
from swiftspec.timing.steps import is_cold
from swiftspec.timing.timeline import Phase
from swiftspec.timing.warm_up import WeightCache

__all__ = ["ForwardTimes"]


class ForwardTimes:
    """Draws latencies, longer after a pause or after the other model's forwards, which evict weights from caches."""

    def __init__(self, meter: LatencySampler, *, now_s: float = 0.0) -> None:
        self._meter = meter
        self._computed_s: dict[Role, float] = {}  # end of each model's last forward
        self._last_model: Role | None = None
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
        pause_s = now_s - self._computed_s.get(model, now_s)
        cache = self._caches.get(model)
        return self._meter.forward(
            model,
            phase,
            peer_busy=peer_busy,
            cold=is_cold(model, pause_s=pause_s, has_alternated=self._last_model not in (None, model)),
            rows=rows,
            context=context,
            sequences=sequences,
            warm_up_s=cache.begin(phase, rows, now_s=now_s) if cache else 0.0,
        )

    def end(self, phase: Phase, model: Role, *, rows: int, now_s: float) -> None:
        """Count the forward that began last, and ends now."""
        self._computed_s[model], self._last_model = now_s, model
        cache = self._caches.get(model)
        if cache:
            cache.end(phase, rows, now_s=now_s)
