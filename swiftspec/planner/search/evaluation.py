"""Simulates options, here or over cores. An outcome depends on option, prompts and seeds, never on the process."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.plan import Goal
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.search.backends import Workers, uncollected
from swiftspec.planner.search.goals import score
from swiftspec.planner.search.option import Option
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulation, Simulator
from swiftspec.simulator.forward_errors import EXACT, ForwardErrors
from swiftspec.timing.latency import Provenance
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Timeline

_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Share of a trace to simulate, and whether to keep what explains the speed.

    An output that is cut short continues at its TPOT or, with `by_rounds`, at the pace of its whole rounds, which is
    steadier when only a few were simulated. To explain a speed where forwards have known errors, every prompt is
    simulated twice, with a draw of them and with the opposite draw.
    """

    prompt_indices: tuple[int, ...]
    max_new_tokens: int
    seeds: tuple[int, ...]
    explain: bool = False
    by_rounds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Simulated speed of an option.

    tokens: int array (prompts,). Traced output tokens of each prompt.
    request_s: float array (runs, prompts). Seconds from request to last token; an output that was cut short is extended
        at its own pace. One run per seed, or a pair of runs.
    tpot_s: float array (runs, prompts).
    seconds: charged seconds by provenance.
    log_scales: float array (runs, prompts, roles), optional. Logarithms of the factors that scaled each prompt's
        forwards, if any.
    """

    option: Option
    tokens: np.ndarray
    request_s: np.ndarray
    tpot_s: np.ndarray
    metrics: Metrics | None
    seconds: dict[Provenance, float]
    log_scales: np.ndarray | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens over time, over all prompts and seeds."""
        return float(len(self.request_s) * self.tokens.sum() / self.request_s.sum())

    @property
    def mean_tpot_s(self) -> float:
        return float(self.tpot_s.mean())

    @property
    def mean_ttft_s(self) -> float:
        return float((self.request_s - self.tpot_s * np.maximum(self.tokens - 1, 0)).mean())

    @property
    def elasticities(self) -> npt.NDArray[np.float64]:
        """Percent by which a request takes longer when a role's forwards take 1 % longer, in the order of `Role`.

        From pairs of runs; 0 where forwards were not scaled.
        """
        if self.log_scales is None:
            return np.zeros(len(Role))
        longer, shorter = np.log(self.request_s[0::2]), np.log(self.request_s[1::2])
        scales = (self.log_scales[0::2] - self.log_scales[1::2]).reshape(-1, len(Role))
        found, *_ = np.linalg.lstsq(scales, (longer - shorter).ravel(), rcond=None)
        return np.asarray(np.clip(found, 0.0, 1.0))

    def score(self, goal: Goal) -> float:
        tokens = np.broadcast_to(self.tokens, self.request_s.shape)
        devices = self.option.num_devices
        return float(score(goal, tokens=tokens, request_s=self.request_s, tpot_s=self.tpot_s, num_devices=devices))


class Evaluator(Workers[tuple[Option, Budget], Outcome]):
    """Runs options through the simulator on `num_jobs` cores: 1 starts no process, -1 uses every core."""

    def __init__(
        self, profile: Profile | Latencies, trace: AcceptanceTrace, *, num_jobs: int, errors: ForwardErrors = EXACT
    ) -> None:
        super().__init__(partial(_outcome, Simulator(profile, trace, errors=errors)), num_jobs)

    def run(self, options: Iterable[Option], budget: Budget) -> list[Outcome]:
        """Outcomes in the order of `options`, all with one budget."""
        return list(self.map((option, budget) for option in options))


@uncollected()
def _outcome(simulator: Simulator, task: tuple[Option, Budget]) -> Outcome:
    (option, budget), errors = task, simulator.errors
    draws = [(seed, mirrored) for seed in budget.seeds for mirrored in (errors.mirrors if budget.explain else (False,))]
    runs: list[Simulation] = []
    for seed, mirrored in draws:
        run = simulator.run(
            option.policy,
            degrees=option.degrees,
            ranks=option.ranks,
            prompt_indices=budget.prompt_indices,
            seed=seed,
            max_new_tokens=budget.max_new_tokens,
            mirrored=mirrored,
            start_s=runs[-1].end_s if mirrored else 0.0,
        )
        runs.append(run)
    tokens = np.array([len(simulator.trace.prompts[index].target_tokens) for index in budget.prompt_indices])
    whole_s = _whole_by_rounds_s if budget.by_rounds else _whole_s
    request_s = np.array([list(map(whole_s, run.timelines, tokens.tolist())) for run in runs])
    ttft_s = np.array([[timeline.ttft_s for timeline in run.timelines] for run in runs])
    # If all tokens come in one round there is no time between them; options are compared by ratios.
    tpot_s = np.maximum(request_s - ttft_s, _LEAST_S) / np.maximum(tokens - 1, 1)
    seconds = {
        provenance: sum(run.seconds.get(provenance, 0.0) for run in runs)
        for provenance in Provenance
        if any(provenance in run.seconds for run in runs)
    }
    log_scales = np.array([_log_scales(errors, budget, seed, mirrored) for seed, mirrored in draws])
    metrics = measure([timeline for run in runs for timeline in run.timelines]) if budget.explain else None
    return Outcome(
        option=option,
        tokens=tokens,
        request_s=request_s,
        tpot_s=tpot_s,
        metrics=metrics,
        seconds=seconds,
        log_scales=log_scales if errors and budget.explain else None,
    )


def _log_scales(errors: ForwardErrors, budget: Budget, seed: int, mirrored: bool) -> list[list[float]]:
    drawn = (errors.scales(seed=seed, index=index, mirrored=mirrored) for index in budget.prompt_indices)
    return [[math.log(scales.get(role, 1.0)) for role in Role] for scales in drawn]


def _whole_s(timeline: Timeline, num_tokens: int) -> float:
    """Request to last token, as if all `num_tokens` had been simulated."""
    return timeline.e2e_s + (num_tokens - timeline.num_tokens) * timeline.tpot_s


def _whole_by_rounds_s(timeline: Timeline, num_tokens: int) -> float:
    """As `_whole_s`, at the pace between the first commit, which waited for the prefill, and the last but one.

    The last round is left out because it was cut short.
    """
    first, *between = timeline.commits[:-1] or timeline.commits
    if num_tokens == timeline.num_tokens or not between:
        return _whole_s(timeline, num_tokens)
    pace_s = (between[-1].end_s - first.end_s) / sum(span.tokens for span in between)
    return timeline.ttft_s + pace_s * (num_tokens - first.tokens)
