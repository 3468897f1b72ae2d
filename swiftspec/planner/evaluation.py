"""Simulates options, here or over cores. An outcome depends on option, prompts and seeds, never on where it ran."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import joblib
import numpy as np

from swiftspec.acceptance import AcceptanceTrace
from swiftspec.planner.space import Option
from swiftspec.profile import Profile, Provenance
from swiftspec.simulator.driver import Simulator
from swiftspec.timeline import Metrics, Timeline, measure

__all__ = ["Effort", "Evaluator", "Outcome"]

# Chunks per job and stage: enough to balance, few enough that a chunk's price list is reused.
_CHUNKS_PER_JOB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much of a trace to simulate, and whether to keep what explains the speed."""

    prompt_indices: tuple[int, ...]
    max_new_tokens: int
    seeds: tuple[int, ...]
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an option.

    Parameters
    ----------
    option : Option
    tokens : int array (prompts,)
        Traced output tokens of each prompt.
    request_s : float array (seeds, prompts)
        Seconds from request to last token; an output that was cut short is extended at its own TPOT.
    metrics : Metrics, optional
    seconds : dict
        Charged seconds by provenance.
    """

    option: Option
    tokens: np.ndarray
    request_s: np.ndarray
    metrics: Metrics | None
    seconds: dict[Provenance, float]

    @property
    def tokens_per_s(self) -> float:
        """Tokens over time, all prompts and seeds together."""
        return float(len(self.request_s) * self.tokens.sum() / self.request_s.sum())


class Evaluator:
    """Runs options through the simulator on `num_jobs` cores: 1 starts no process, -1 uses every core."""

    def __init__(self, profile: Profile, trace: AcceptanceTrace, *, num_jobs: int) -> None:
        self._profile = profile
        self._trace = trace
        self._num_jobs = joblib.cpu_count() if num_jobs == -1 else num_jobs

    def run(self, options: Sequence[Option], effort: Effort, *, done: Callable[[int], None]) -> list[Outcome]:
        """Outcomes in the order of `options`; `done` hears how many are finished."""
        num_chunks = max(1, min(len(options), self._num_jobs * _CHUNKS_PER_JOB))
        chunks = [options[start::num_chunks] for start in range(num_chunks)]
        outcomes: list[Outcome | None] = [None] * len(options)
        finished = 0
        for start, part in enumerate(self._parts(chunks, effort)):
            outcomes[start::num_chunks] = part
            finished += len(part)
            done(finished)
        return [outcome for outcome in outcomes if outcome is not None]

    def _parts(self, chunks: Sequence[Sequence[Option]], effort: Effort) -> Iterator[list[Outcome]]:
        if self._num_jobs == 1:
            yield from (_evaluate(self._profile, self._trace, chunk, effort) for chunk in chunks)
            return
        # No backend is named, so that joblib.parallel_config can send the chunks to a cluster.
        parallel = joblib.Parallel(n_jobs=self._num_jobs, return_as="generator")
        yield from parallel(joblib.delayed(_evaluate)(self._profile, self._trace, chunk, effort) for chunk in chunks)


def _evaluate(profile: Profile, trace: AcceptanceTrace, options: Sequence[Option], effort: Effort) -> list[Outcome]:
    simulator = Simulator(profile, trace)
    return [_outcome(simulator, trace, option, effort) for option in options]


def _outcome(simulator: Simulator, trace: AcceptanceTrace, option: Option, effort: Effort) -> Outcome:
    runs = [
        simulator.run(
            option.policy,
            degrees=option.degrees,
            prompt_indices=effort.prompt_indices,
            seed=seed,
            max_new_tokens=effort.max_new_tokens,
        )
        for seed in effort.seeds
    ]
    tokens = np.array([len(trace.prompts[index].target_tokens) for index in effort.prompt_indices])
    request_s = np.array([list(map(_whole_s, run.timelines, tokens.tolist())) for run in runs])
    seconds = {
        provenance: sum(run.seconds.get(provenance, 0.0) for run in runs)
        for provenance in Provenance
        if any(provenance in run.seconds for run in runs)
    }
    metrics = measure([timeline for run in runs for timeline in run.timelines]) if effort.explain else None
    return Outcome(option=option, tokens=tokens, request_s=request_s, metrics=metrics, seconds=seconds)


def _whole_s(timeline: Timeline, num_tokens: int) -> float:
    """Request to last token, had all `num_tokens` been simulated."""
    missing = num_tokens - timeline.num_tokens
    return timeline.e2e_s + missing * timeline.tpot_s if missing else timeline.e2e_s
