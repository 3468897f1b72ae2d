"""Scoring of prompts on an engine: how likely its target finds each token of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from swiftspec.engine.chunks import Chunk
from swiftspec.engine.requests import Task
from swiftspec.models.tokenizer import TextStream, Tokenizer
from swiftspec.policies.effects import Candidates
from swiftspec.policies.scoring import PromptScoring

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Launcher
    from swiftspec.engine.running import Generation, RequestEvent


class ScoredToken(NamedTuple):
    """A token of a prompt.

    text: what it adds to the text; empty while a character is incomplete, and of a special token. log_prob: natural
    logarithm of its probability after the tokens before it, at temperature 1; None of the first one. candidates: tuple
    of (str, float). The likeliest tokens in its place, as texts, and their log-probs; none unless they were wanted.
    """

    token_id: int
    text: str
    log_prob: float | None
    candidates: tuple[tuple[str, float], ...] = ()


def score(launcher: Launcher, task: Task, num_candidates: int) -> Generation:
    """The record of a task's prompt, once it is scored. Raises as `Engine.generate`."""
    from swiftspec.engine.launcher import whole
    from swiftspec.engine.model.sampling.sampler import Sampler

    return whole(launcher.stream(PromptScoring(num_candidates=num_candidates), task, sampler=Sampler()))


def submit(
    launcher: Launcher,
    task: Task,
    deliver: Callable[[tuple[Chunk, ...], Generation | Exception | None], None],
    *,
    num_candidates: int = 0,
    with_next: bool = False,
) -> Callable[[], None]:
    """Score a task's prompt on a launcher's target, in the same steps as other requests; returns what ends it early.

    deliver: takes the end, a `Generation` with log-probs or an exception, in another thread; no chunks.
    num_candidates: likeliest tokens to find in the place of each. with_next: find the likeliest next token, too.
    """
    from swiftspec.engine.model.sampling.sampler import Sampler

    def take(event: RequestEvent) -> None:
        if not isinstance(event, tuple):
            deliver((), event)

    policy = PromptScoring(num_candidates=num_candidates, with_next=with_next)
    running = launcher.submit(policy, task, sampler=Sampler(), deliver=take)
    return partial(launcher.cancel, running)


def scored(tokenizer: Tokenizer, prompt: Sequence[int], generation: Generation) -> tuple[ScoredToken, ...]:
    """The tokens of a prompt that was scored, and the next one. Their texts add up to the whole text."""
    tokens, stream = (*prompt, *generation.tokens), TextStream(tokenizer)
    texts = [stream.push((token,)) for token in tokens]
    texts[-1] += stream.flush()

    def named(candidates: Candidates | None, token: int, score: float | None) -> tuple[tuple[str, float], ...]:
        """Candidates as texts; the token itself with its own log-prob, so that equal ones are equal to the last bit."""
        found = dict(zip(*(candidates or ((), ())), strict=True))
        if token in found and score is not None:
            found[token] = score
        return tuple((tokenizer.decode((each,)), log_prob) for each, log_prob in found.items())

    found = zip_longest(tokens, texts, (None, *generation.log_probs), (None, *generation.candidates))
    return tuple(ScoredToken(token, text, score, named(likely, token, score)) for token, text, score, likely in found)
