"""Model of a server that runs: acceptance, its engine's step rule, and step times calibrated to what was counted."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.lengths import conditional_rates, unconditional_rates
from swiftspec.artifacts.advice import ObservedLoad, ServerFit
from swiftspec.engines.words import Method
from swiftspec.planner.under_load.arrays import EngineUnderLoad, simulate
from swiftspec.planner.under_load.loads import UNEVEN, Requests
from swiftspec.planner.under_load.serving_engine import ServingEngine
from swiftspec.scheduler.prefix_cache import PrefixCache
from swiftspec.validation.served import DraftCounts

# Methods that draft all tokens of a round in one forward.
AT_ONCE: Final = frozenset({Method.PARD, Method.P_EAGLE, Method.DFLASH, Method.DSPARK, Method.DOMINO})
_TOKENS, _PER_CLIENT, _LEAST = 16384, 6, 8  # simulated: output tokens, requests of each client, requests
_FITS: Final = 2  # of the factor, which is nearly linear
_QUEUED: Final = 0.5  # requests that wait, from which on the limit of requests at once counts
_EXTRAPOLATED: Final = 0.1  # standard deviation of the rate beyond the counted positions: an assumption
_HALF: Final = 0.5  # of Jeffreys' prior of a rate
_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedAcceptance:
    """Acceptance by position.

    rates: of each draft token, if those before it were accepted. share: of the rounds that have drafts. drafts:
    independent ones that would tell as much.
    """

    rates: tuple[float, ...]
    share: float
    drafts: float

    @classmethod
    def of(cls, observed: ObservedLoad) -> Self:
        """That of a load; rates beyond the counted positions are as the last one."""
        rates = tuple(min(1.0, rate) for rate in conditional_rates(observed.survival[: observed.draft_tokens]))
        return cls(rates=rates, share=observed.draft_share, drafts=observed.effective_drafts)

    def survival(self, length: int) -> tuple[float, ...]:
        """Shares of the drafts of which at least 1, 2, .. tokens are accepted."""
        beyond = self.rates[-1:] * max(0, length - len(self.rates))
        return unconditional_rates((*self.rates, *beyond)[:length])

    def tokens(self, length: int) -> float:
        """Mean tokens of a round, the bonus token included."""
        return 1 + self.share * sum(self.survival(length))

    def counts(self, length: int) -> DraftCounts:
        """The same as counts of drafts of this length."""
        share = self.share if length else 0.0
        by_position = [share * each for each in self.survival(length)]
        return DraftCounts(steps=1.0, drafts=share, drafted=share * length, by_position=by_position)

    def drawn_tokens(self, lengths: tuple[int, ...], *, draws: int, seed: int) -> dict[int, npt.NDArray[np.float64]]:
        """`tokens` of the lengths, redrawn as often as given within what the counts leave open."""
        rng = np.random.default_rng(seed)
        longest, counted = max(lengths), len(self.rates)
        at_risk, columns = self.drafts, []
        for rate in self.rates[:longest]:
            columns.append(rng.beta(_HALF + at_risk * rate, _HALF + at_risk * (1 - rate), size=draws))
            at_risk *= rate
        if longest > counted and columns:
            beyond = columns[-1] + _EXTRAPOLATED * rng.standard_normal(draws)
            columns += [beyond.clip(0.0, 1.0)] * (longest - counted)
        survival = np.cumprod(np.array(columns).reshape(len(columns), draws), axis=0)
        return {length: 1 + self.share * survival[:length].sum(axis=0) for length in lengths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A server under a load.

    length: draft tokens of a round. requests: clients of a closed loop. most_requests, step_tokens, block: of the
    engine's limits, as they are if None. serving: the engine, if it is another one.
    """

    length: int
    requests: int
    most_requests: int | None = None
    step_tokens: int | None = None
    block: int | None = None
    serving: ServingEngine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMeans:
    """Predicted means of a load. tokens_per_s: of all requests."""

    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class ServerModel:
    """A server as counted.

    looks_up: whether drafts are looked up in the text. source, step_error: as of `ServerFit`.
    """

    serving: ServingEngine
    observed: ObservedLoad
    source: str
    step_error: float
    looks_up: bool = False
    time_factor: float = 1.0

    @cached_property
    def acceptance(self) -> CountedAcceptance:
        return CountedAcceptance.of(self.observed)

    @property
    def now(self) -> Variant:
        return Variant(length=self.observed.draft_tokens, requests=max(1, round(self.observed.present)))

    @property
    def is_full(self) -> bool:
        """Whether requests wait for others to end."""
        return (self.observed.waiting or 0.0) > _QUEUED

    @property
    def most_requests(self) -> int:
        """Requests that run at once, at most: fewer than the engine's limit where some wait already."""
        most = self.serving.limits.requests
        running = max(1, round(self.observed.present - (self.observed.waiting or 0.0)))
        return min(most, running) if self.is_full else most

    def calibrated(self) -> Self:
        """The same with the factor by which the predicted TPOT is the counted one."""
        found = self
        for _ in range(_FITS):
            found = replace(found, time_factor=found.time_factor * self.observed.tpot_s / found.serve(self.now).tpot_s)
        return found

    def levels(self, length: int) -> int:
        """Draft forwards of a round."""
        drafts = self.serving.drafts
        if self.looks_up or drafts is None:
            return 0
        return min(length, 1) if drafts.method in AT_ONCE else length

    @property
    def method(self) -> Method:
        drafts = self.serving.drafts
        return Method.PROMPT_LOOKUP if self.looks_up or drafts is None else drafts.method

    @property
    def read_again(self) -> int:
        """Tokens of each matched prefix that are read again for the draft."""
        drafts = self.observed.draft_tokens and not self.looks_up and self.observed.cached_share
        return self.serving.tokens_read_again if drafts else 0

    def serve(self, variant: Variant) -> LoadMeans:
        """Simulate the load. ValueError if the models do not fit the device."""
        requests = self._requests(variant.requests)
        run = simulate(requests, self._engine(variant), seed=_SEED)
        # At its ends a closed loop is not yet, or no longer, as it is in between.
        inner = slice(variant.requests, -variant.requests)
        ttft_s, e2e_s = float(run.ttft_s[inner].mean()), float(run.e2e_s[inner].mean())
        later = float(run.output_tokens[inner].mean()) - 1
        return LoadMeans(
            ttft_s=ttft_s,
            tpot_s=(e2e_s - ttft_s) / max(1.0, later),
            e2e_s=e2e_s,
            tokens_per_s=variant.requests * (later + 1) / e2e_s,
        )

    def fit(self) -> ServerFit:
        served = self.serve(self.now)
        return ServerFit(
            source=self.source,
            engine=self.serving.described(),
            requests=self.now.requests,
            time_factor=self.time_factor,
            step_error=self.step_error,
            ttft_s=served.ttft_s,
            tpot_s=served.tpot_s,
            e2e_s=served.e2e_s,
            read_again=self.read_again,
        )

    def _requests(self, clients: int) -> Requests:
        """A closed loop of the counted lengths, which are uneven by a tenth."""
        observed = self.observed
        output = max(2.0, observed.output_tokens)
        count = 2 * clients + max(_PER_CLIENT * clients, math.ceil(_TOKENS / output), _LEAST)
        lengths = np.linspace((1 - UNEVEN) * output, (1 + UNEVEN) * output, count).round().astype(np.int64)
        prompt = max(1, round(observed.prompt_tokens))
        shared = min(prompt, round((observed.cached_share or 0.0) * prompt) + self.read_again)
        return Requests(
            arrival_s=np.zeros(count),
            prompt_tokens=np.full(count, prompt, np.int64),
            output_tokens=np.random.default_rng(_SEED).permutation(lengths),
            segments=[[("shared", shared)]] * count if shared else (),
            num_clients=clients,
        )

    def _engine(self, variant: Variant) -> EngineUnderLoad:
        there = variant.serving or self.serving
        rounds = self.acceptance.counts(variant.length).rounds(levels=self.levels(variant.length), seed=_SEED)
        if self.method in AT_ONCE:
            rounds = [one._replace(draft_rows=(variant.length,) * len(one.draft_rows)) for one in rounds]
        chains = there.recorded_chains(rounds)
        engine, factor = there.under_load(chains), self.time_factor
        step_s = engine.step_s
        prefixes = engine.prefixes
        if variant.block is not None:
            prefixes = PrefixCache(block_tokens=variant.block, gives_up=prefixes.gives_up)
        return replace(
            engine,
            max_requests=variant.most_requests or self.most_requests,
            step_tokens=variant.step_tokens or engine.step_tokens,
            cache_tokens=self.observed.cache_tokens or engine.cache_tokens,
            step_s=lambda work: factor * step_s(work),
            prefixes=prefixes,
            chains=None
            if chains is None
            else replace(chains, draft_s=lambda requests, context: factor * chains.draft_s(requests, context)),
        )
