"""A replica's speed under load in closed form, by which the options to simulate are chosen; no plan prints it.

The rates at which requests come and end are equal: B requests at once, of n tokens each, are B / (TTFT + n TPOT(B))
requests per second. TPOT(B) is that of a single request, as simulated, times the ratio of closed-form round times; and
prompts, which are read beside other requests' rows, take their share of the time from everyone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.workload import Workload
from swiftspec.planner.search.estimates import ClosedForms, StepTimes
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.simulations import RankedOption
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_CHUNK_ROWS, _BUSY_ROWS = 128, 64  # of a prompt, beside rows that are verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Mean tokens of a request, and seconds that its client thinks before it sends the next one."""

    prompt_tokens: float
    output_tokens: float
    think_s: float = 0.0

    @classmethod
    def of(cls, workload: Workload) -> "Means":
        requests = workload.requests
        return cls(
            prompt_tokens=sum(request.prompt_tokens for request in requests) / len(requests),
            output_tokens=sum(request.output_tokens for request in requests) / len(requests),
            think_s=sum(request.think_time_s or 0.0 for request in requests) / len(requests),
        )


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Estimated TPOT of a replica by its load, up to the most requests that it may run.

    loads: requests per second, or clients of a closed loop, ascending. batches: requests at once.
    """

    loads: npt.NDArray[np.float64]
    tpot_s: npt.NDArray[np.float64]
    batches: npt.NDArray[np.float64]

    def user_tokens_per_s(self, load: float) -> float:
        """Speed that a user sees at a load; 0 beyond the highest one that can be served."""
        return 0.0 if load > self.loads[-1] else 1 / float(np.interp(load, self.loads, self.tpot_s))

    def batch(self, load: float) -> float:
        return float(np.interp(load, self.loads, self.batches))

    def capacity(self, tpot_s: float | None) -> float:
        """Highest load at which the mean TPOT is at most this; the highest of all without a limit."""
        if tpot_s is None:
            return float(self.loads[-1])
        within = self.loads[self.tpot_s <= tpot_s]
        return float(within[-1]) if within.size else 0.0


class SharedSteps(StepTimes):
    """As `StepTimes`, of requests that share every step; what does not fit into a step is in the next one.

    sequences: requests. most_rows: of a step.
    """

    def __init__(self, profile: Profile, context: int, sequences: int, most_rows: int) -> None:
        super().__init__(profile, context)
        self._sequences, self._most_rows = sequences, most_rows

    def rows(self, policy: Policy) -> int:
        most = max(1, self._most_rows // self._sequences)
        return min(policy.target_rows, most) if policy.elastic else policy.target_rows

    def forward_s(self, option: Option, phase: Phase, role: Role, *, rows: int) -> float:
        steps = math.ceil(self._sequences * rows / self._most_rows)
        at_once = math.ceil(self._sequences / steps)
        one_s = super().forward_s(option, phase, role, rows=at_once * rows)
        key = StepKey(role, phase, option.degree(role), rows, self._context, at_once, option.num_ranks(role))
        further_s, _ = self._profile.latencies.of(role, option.policy.layout).further_sequences(key)
        return steps * (one_s + further_s)


@dataclass(frozen=True, kw_only=True)
class LoadCurves:
    """Load curves of options.

    most_rows: of a step. clients: whether loads are clients of a closed loop instead of requests per second.
    """

    profile: Profile
    closed: ClosedForms
    means: Means
    max_running: int
    most_rows: int
    clients: bool

    @cached_property
    def _shared(self) -> Callable[[int, int], SharedSteps]:
        return cache(partial(SharedSteps, self.profile, self.closed.context))

    def curve(self, found: RankedOption, *, cached_tokens: int | None) -> LoadCurve:
        """Estimate of an option whose speed for a single request is known.

        cached_tokens: of all requests at once, for which there is memory.
        """
        means = self.means
        batches: list[float] = [*takewhile(lambda batch: batch < self.max_running, _BATCHES), self.max_running]
        if cached_tokens is not None:
            most = max(1.0, cached_tokens / (means.prompt_tokens + means.output_tokens))
            batches = [*takewhile(lambda batch: batch < most, batches), *([most] if most < batches[-1] else [])]
        alone = self.closed.estimate(found.option)
        prompt_s = self._prompt_s(found)
        points = []
        for batch in batches:
            shared = self._shared(max(1, round(batch)), self.most_rows)
            slower = alone / self.closed.estimate(found.option, shared)
            tpot_s = found.tpot_s * slower
            rate = _rate(batch, found.ttft_s, means.output_tokens * tpot_s, prompt_s)
            load = batch + rate * means.think_s if self.clients else rate
            points.append((load, tpot_s / (1 - rate * prompt_s), batch))
        return LoadCurve(*np.array(_ascending(points)).T)

    def _prompt_s(self, found: RankedOption) -> float:
        """Seconds of the target's, or a co-located draft's, steps that a prompt's rows add."""
        option = found.option
        roles = tuple(Role) if option.policy.layout is Layout.COLOCATED else (Role.TARGET,)
        total_s = 0.0
        for role in roles:
            phase = Phase.VERIFY if role is Role.TARGET else Phase.EXPAND
            degree, ranks, context = option.degree(role), option.num_ranks(role), round(self.means.prompt_tokens)
            alone = StepKey(role, phase, degree, _BUSY_ROWS, context, ranks=ranks)
            beside = alone._replace(rows=_BUSY_ROWS + _CHUNK_ROWS)
            more_s = self.profile.step(beside).mean_s - self.profile.step(alone).mean_s
            total_s += max(0.0, more_s) * self.means.prompt_tokens / _CHUNK_ROWS
        return total_s


def _rate(batch: float, ttft_s: float, decoding_s: float, prompt_s: float) -> float:
    """Rate at which as many requests are there at once: that of rate (ttft + decoding / (1 - rate prompt)) = batch."""
    half = (ttft_s + decoding_s + batch * prompt_s) / 2
    return batch / (half + math.sqrt(half**2 - batch * ttft_s * prompt_s))


def _ascending(points: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Points whose loads rise: more requests at once that are served at a lower rate are no use."""
    kept: list[tuple[float, float, float]] = []
    for point in points:
        if not kept or point[0] > kept[-1][0]:
            kept.append(point)
    return kept
