"""Pauses: the measuring program and the fit, on a machine of known costs."""

from typing import Any, cast

import numpy as np
import pytest

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Clock, Role, TargetForward
from swiftspec.profiler.pauses import PAUSE_REPEATS, fit_warm_up, measure_pauses
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase, Span, Timeline
from swiftspec.timing.warm_up import WarmUpCost, WeightCache

COST = WarmUpCost(
    role=Role.TARGET,
    degree=1,
    rows=(1, 4, 8, 16),
    extra_s=(2e-3, 1.5e-3, 1e-3, 0.5e-3),
    left=0.7,
    evicted_s=0.015,
    provenance=Provenance.MEASURED,
)
SETTLED_S = {1: 4e-3, 4: 5e-3, 8: 7e-3, 16: 12e-3}


class Machine:
    """Runs a measuring program on forwards of known length; a look at the clock takes 0.1 ms."""

    def __init__(self, cost: WarmUpCost | None, *, noise: float = 0.0) -> None:
        self.now_s = 0.0
        self.num_forwards = 0
        self._cache = WeightCache(cost) if cost else None
        self._rng, self._noise = np.random.default_rng(1), noise

    def generate(self, policy: Policy, request: Request, *, request_id: str, sampler: Sampler) -> Generation:
        spans: list[Span] = []
        program = policy.programs(request)[Role.TARGET]
        answer: Any = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                break
            answer = None
            if isinstance(effect, Clock):
                self.now_s += 1e-4
                answer = self.now_s
            elif isinstance(effect, TargetForward):
                start_s = self.now_s
                self.now_s += self._seconds(len(effect.rows))
                spans.append(Span(Role.TARGET, Phase.VERIFY, Role.TARGET, len(effect.rows), 0, start_s, self.now_s))
        timeline = Timeline(request=request_id, start_s=0.0, spans=tuple(spans))
        return Generation(tokens=(0,), timeline=timeline, interrupted=False, losses=0)

    def _seconds(self, rows: int) -> float:
        self.num_forwards += 1
        extra_s = self._cache.begin(Phase.VERIFY, rows, now_s=self.now_s) if self._cache else 0.0
        seconds = (SETTLED_S[rows] + extra_s) * (1 + self._noise * self._rng.standard_exponential())
        if self._cache:
            self._cache.end(Phase.VERIFY, rows, now_s=self.now_s + seconds)
        return float(seconds)


def measured(machine: Machine, passes: int = 1) -> WarmUpCost | None:
    repeats = PAUSE_REPEATS // passes
    series = [
        each for _ in range(passes) for each in measure_pauses(cast(Launcher, machine), repeats=repeats, vocab_size=100)
    ]
    return fit_warm_up(series, degree=2)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_known_costs_are_found_again(noise: float, passes: int) -> None:
    found = measured(Machine(COST, noise=noise), passes)
    assert found is not None
    assert (found.role, found.degree, found.rows) == (Role.TARGET, 2, COST.rows)
    within = 0.01 + 5 * noise
    assert found.extra_s == pytest.approx(COST.extra_s, rel=within, abs=1e-2 * noise)
    assert found.left == pytest.approx(COST.left, rel=within)
    assert found.evicted_s == pytest.approx(COST.evicted_s, rel=0.05 + 2 * noise)  # the clock goes in steps
    assert found.median_error is not None
    assert found.median_error <= 0.01 + noise


@pytest.mark.parametrize("cost", [None, COST.scaled(0.05)])
def test_a_short_trial_is_enough_where_pauses_cost_nothing(cost: WarmUpCost | None) -> None:
    machine = Machine(cost)
    assert measured(machine) is None
    assert machine.num_forwards < 60
