"""Probes: a few requests at once, whose chunks tell how long a server's steps take."""

from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from swiftspec.loadtest.client import ServerClient
from swiftspec.loadtest.streams import StreamedCompletion

_LEAST_STEPS: Final = 3
_PHRASE: Final = 12  # tokens of a phrase that a prompt repeats, so that text is found in it


class Drafting(StrEnum):
    """How a server drafts."""

    PLAIN = "plain"
    LOOKUP = "lookup"
    DRAFT = "draft"


class Work(NamedTuple):
    """Work of a step, in the mean."""

    drafting: Drafting
    sequences: int = 0  # requests that decode
    rows: float = 0.0  # of all of them
    cache_tokens: float = 0.0  # in their caches together
    levels: float = 0.0  # draft tokens of each
    # read, read_before: tokens of a prompt that are read, and those of it that were read before
    read: int = 0
    read_before: int = 0


class PromptTime(NamedTuple):
    """Seconds from a request to its first token, and those that its engine had it."""

    tokens: int
    client_s: float
    engine_s: float


class Probe(NamedTuple):
    """Requests at once, the tokens of their prompts, and the steps that are wanted."""

    sequences: int
    prompt_tokens: int
    steps: int


class PromptProbe(NamedTuple):
    """A prompt, and the tokens at its beginning that the server has read before."""

    tokens: int
    cached: int = 0


class Measured(NamedTuple):
    """Mean seconds of a step of a probe."""

    probe: Probe | PromptProbe
    work: Work
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedServer:
    """A server, and how it drafts."""

    client: ServerClient
    model: str
    drafting: Drafting
    vocabulary: Sequence[int]  # token ids that prompts are made of
    lengths: Callable[[int], int]  # draft tokens of a round by requests at once
    cores: Set[int] = frozenset()  # of this machine, that it computes on

    def decoding(self, probe: Probe, *, seed: int) -> Measured | None:
        """A step of requests that all decode; None of too few. A seed sends the same prompts, which are then cached."""
        length = self.lengths(probe.sequences)
        num_tokens = probe.steps * (1 + (length + 1) // 2) if length else probe.steps + 1
        prompts = [self._prompt(probe.prompt_tokens, seed, number) for number in range(probe.sequences)]
        before = self.client.reading()
        with ThreadPoolExecutor(probe.sequences) as threads:
            answers = list(threads.map(lambda prompt: self._completed(prompt, num_tokens), prompts))
        counted = self.client.reading().since(before)
        began, ended = max(one.chunks_s[0] for one in answers), min(one.chunks_s[-1] for one in answers)
        windows = [[at for at in one.chunks_s if began <= at <= ended] for one in answers]
        seen = [(one, window) for one, window in zip(answers, windows, strict=True) if len(window) > _LEAST_STEPS]
        if not seen:
            return None
        steps = sum((len(window) - 1) * (one.num_rounds - 1) / (len(one.chunks_s) - 1) for one, window in seen)
        seconds = sum(window[-1] - window[0] for _, window in seen) / steps
        rounds = max(1, sum(one.num_rounds - 1 for one in answers))
        levels = counted.count("spec_decode_num_draft_tokens") / rounds if length else 0.0
        sent = fmean(one.num_tokens * _share_before(one, began, ended) for one in answers)
        return Measured(
            probe,
            Work(
                drafting=self.drafting,
                sequences=probe.sequences,
                rows=probe.sequences * (1 + levels),
                cache_tokens=probe.sequences * (probe.prompt_tokens + sent),
                levels=levels,
            ),
            seconds,
        )

    def prompt(self, probe: PromptProbe, *, seed: int) -> tuple[Measured, PromptTime] | None:
        """The step that reads a prompt, and what its client waits beyond that; None if the server does not tell it."""
        tokens = self._prompt(probe.tokens, seed, probe.tokens)
        if probe.cached:
            self._completed(tokens[: probe.cached], 1)
        before = self.client.reading()
        answer = self._completed(tokens, 1)
        counted = self.client.reading().since(before)
        engine_s, queued_s = counted.mean("request_prefill_time_seconds"), counted.mean("request_queue_time_seconds")
        hits = int(counted.count("prefix_cache_hits"))
        if answer.timings is not None:
            engine_s, hits = 1e-3 * answer.timings.prompt_ms, answer.timings.cache_n
        if not engine_s:
            return None
        work = Work(drafting=self.drafting, read=probe.tokens - hits, read_before=hits)
        client_s = answer.chunks_s[0] - answer.sent_s
        return Measured(probe, work, engine_s), PromptTime(probe.tokens, client_s, engine_s + (queued_s or 0.0))

    def _prompt(self, num_tokens: int, seed: int, number: int) -> list[int]:
        """Random text that begins alike with the same seed and number alone; its end repeats a phrase."""
        rng = np.random.default_rng([seed, number, num_tokens])
        drawn: list[int] = rng.choice(self.vocabulary, size=num_tokens).tolist()
        if self.drafting is Drafting.LOOKUP:
            phrase = drawn[:_PHRASE]
            drawn = [phrase[place % _PHRASE] for place in range(num_tokens)]
        return drawn

    def _completed(self, prompt: Sequence[int], num_tokens: int) -> StreamedCompletion:
        answer = self.client.complete(prompt, model=self.model, num_tokens=num_tokens)
        if answer.error:
            raise ValueError(f"--url {self.client.url}: a request failed: {answer.error}")
        return answer


def _share_before(answer: StreamedCompletion, began: float, ended: float) -> float:
    """Share of an answer that was there in the middle of a window."""
    middle = (began + ended) / 2
    return sum(at <= middle for at in answer.chunks_s) / len(answer.chunks_s)
