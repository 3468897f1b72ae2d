"""An engine that serves a pair of models: what decides how it serves a load, wherever its times are from.

`ComposedEngine` composes them of op tables, `MeasuredEngine` has them from a profile of servers that ran.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from swiftspec.costmodel.steps import StepWork
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import Method
from swiftspec.planner.under_load.arrays import EngineUnderLoad
from swiftspec.planner.under_load.decoding import Chains
from swiftspec.policies.effects import Role
from swiftspec.scheduler.prefix_cache import PrefixCache
from swiftspec.simulator.latency import LatencyDraw, LatencyTable, priced_context
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

if TYPE_CHECKING:
    from swiftspec.planner.under_load.rounds import Round

_NOTHING = LatencyDraw((0.0,), ((Provenance.MEASURED, 1.0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMethod:
    """A draft on its target's devices: what engines call it, and if it reads the target's states of all the text."""

    method: Method = Method.MODEL
    reads_target: bool = False


class AboveEngine(NamedTuple):
    """Seconds above the engine, as in `engines.constants`: of a request, of each prompt token, of each token told."""

    request_s: float
    prompt_token_s: float
    token_s: float


class ServingEngine(ABC):
    """An engine, and the models that it serves on a group of devices."""

    engine: Engine

    @property
    @abstractmethod
    def limits(self) -> StepLimits:
        """The engine's limits, with the user's, of all ranks of attention in data parallel together."""

    @property
    @abstractmethod
    def drafts(self) -> DraftMethod | None:
        """The draft; None where text is looked up, or nothing is drafted."""

    @property
    @abstractmethod
    def above(self) -> AboveEngine:
        """What lies above it."""

    @property
    def ranks(self) -> int:
        """Ranks of attention in data parallel."""
        return 1

    @abstractmethod
    def on(self, degree: int, *, context: int) -> Self:
        """The same on another group of devices, for requests of so many tokens."""

    @abstractmethod
    def step_s(self, work: StepWork) -> float:
        """Seconds of a step, with all that the engine adds to every one."""

    @abstractmethod
    def round_s(self, method: Method | None) -> float:
        """Seconds that a step takes longer if it verifies what a method has drafted."""

    @abstractmethod
    def draft_s(self, forward_rows: Sequence[int]) -> Callable[[int, float], float]:
        """Seconds of a round's draft forwards, from the requests and their mean context."""

    @abstractmethod
    def room(self, *, beside_draft: bool) -> int:
        """Tokens that the KV cache has room for. ValueError if not even the weights fit."""

    def described(self) -> str:
        """The engine and the limits of its steps, a clause."""
        limits = self.limits
        graphs = f", graphs up to {limits.captured_tokens}" if limits.captured_tokens else ""
        ahead = "formed while one runs" if limits.runs_ahead else "formed after the one before"
        return (
            f"{self.engine.described()} with steps of at most {limits.step_tokens} tokens and {limits.requests} "
            f"requests, {ahead}{graphs}"
        )

    def chains(self, *, forward_rows: Sequence[int], rows: int, tokens: npt.NDArray[np.int64]) -> Chains:
        """What a simulation needs of drafting in lockstep.

        forward_rows: rows of every draft forward of a round, for one request. rows: rows of a verification, for one
        request. tokens: tokens of rounds, the bonus token included.
        """
        drafts = self.drafts if forward_rows else None
        return Chains(
            rows=rows,
            draft_s=self.draft_s(forward_rows) if drafts else lambda *_: 0.0,
            tokens=tokens,
            method=drafts.method if drafts else Method.PROMPT_LOOKUP,  # text is looked up, which costs no forward
        )

    @property
    def tokens_read_again(self) -> int:
        """Tokens of each matched prefix that are read again for the draft."""
        drafts = self.drafts
        reads_target = drafts is not None and drafts.reads_target
        return self.engine.blocks_given_up * self.limits.prefix_block if reads_target else 0

    def recorded_chains(self, rounds: Sequence[Round]) -> Chains | None:
        """Drafting in lockstep, as recorded rounds have it; None for plain decoding."""
        rows = round(fmean(one.verify_rows for one in rounds))
        if rows <= 1:
            return None
        levels = range(max(len(one.draft_rows) for one in rounds))
        of_level = [[one.draft_rows[level] for one in rounds if level < len(one.draft_rows)] for level in levels]
        tokens = np.array([one.tokens for one in rounds])
        return self.chains(forward_rows=[round(fmean(width)) for width in of_level], rows=rows, tokens=tokens)

    def under_load(self, chains: Chains | None = None) -> EngineUnderLoad:
        """What a simulation needs. chains: the drafting."""
        method = None if chains is None else chains.method
        drafts = None if method in (None, Method.PROMPT_LOOKUP) else self.drafts
        gives_up = self.engine.blocks_given_up if drafts is not None and drafts.reads_target else 0
        ahead = self.limits.runs_ahead and (method is None or self.engine.drafts_ahead(method))
        round_s = self.round_s(method)
        return EngineUnderLoad(
            rule=self.engine.rule,
            step_tokens=self.limits.step_tokens,
            max_requests=self.limits.requests,
            cache_tokens=self.room(beside_draft=drafts is not None),
            runs_ahead=ahead,
            step_s=lambda work: round_s + self.step_s(work),
            **self.above._asdict(),
            prefixes=PrefixCache(block_tokens=self.limits.prefix_block, gives_up=gives_up),
            chains=chains,
            ranks=self.ranks,
            prompt_wait=self.limits.prompt_wait,
        )


class EnginePrices(LatencyTable):
    """An engine's steps as a simulation of events asks for them: one forward over the rows of some sequences.

    latencies: of the same profile, for all but the engine's steps.
    """

    def __init__(self, serving: ServingEngine, latencies: Latencies) -> None:
        super().__init__(latencies)
        self._serving = serving
        self._round_s = serving.round_s(Method.DRAFT_SERVER)
        self._steps: dict[StepKey, LatencyDraw] = {}

    def forward(self, key: StepKey) -> LatencyDraw:
        """Seconds of a step, of verifications with prompts beside them or of prompts alone."""
        key = key._replace(context=priced_context(key.context), peer_busy=False, cold=False)
        if key not in self._steps:
            told_s = self._serving.above.token_s * key.sequences
            seconds = max(self._serving.step_s(_work(key)) + self._round_s, told_s)
            provenance = self.latencies.step(key._replace(sequences=1)).provenance
            self._steps[key] = LatencyDraw((seconds,), ((provenance, 1.0),))
        return self._steps[key]

    def host(self, phase: Phase, rows: int, *, policy: str) -> LatencyDraw:
        """Nothing: it is in the steps."""
        del phase, rows, policy
        return _NOTHING


def _work(key: StepKey) -> StepWork:
    if key.role is Role.TARGET and key.phase is Phase.PREFILL:
        return StepWork(chunks=[(key.rows, key.context)], sampled=key.sequences)
    sequences = key.sequences
    return StepWork(
        sequences=sequences,
        rows_each=max(1, round(key.rows / sequences)),
        cache_tokens=sequences * key.context,
        sampled=key.rows,
    )
