"""Rounds of one request, recorded where both models share devices: the same ones at any load.

A round's tokens and rows do not depend on how long forwards take, nor on who shares its steps. So the rounds of a few
simulated requests tell what any number of requests ask for.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase, Span, Timeline

__all__ = ["Round", "recorded_rounds", "rounds_of"]

_PROMPTS, _TOKENS = 16, 96  # whose rounds are recorded, and output tokens of each
_HOST = (Phase.COMMIT, Phase.COMPACT)


class Round(NamedTuple):
    """Forwards of a round, and the tokens that it brings.

    draft_rows: of every draft forward. verify_rows: of its verification. host: what the host does after it, or between
    the drafts, with the rows that it concerns, in order. read_rows: text that the draft reads first, since earlier
    rounds did without it; not the prompt, which every request has its own of.
    """

    draft_rows: tuple[int, ...]
    verify_rows: int
    tokens: int
    host: tuple[tuple[Phase, int], ...] = ((Phase.COMMIT, 0),)
    read_rows: int = 0


def recorded_rounds(
    policy: Policy,
    degree: int,
    *,
    latencies: Latencies,
    trace: AcceptanceTrace,
    seed: int,
    ranks: int = 1,
    prompts: Sequence[int] = (),
) -> dict[int, list[Round]]:
    """Rounds of simulated requests by the index of their prompt, of a policy whose models share devices.

    prompts: those that are needed; some of the trace's, evenly spread, if there are none.
    """
    count = len(trace.prompts)
    indices = prompts or np.linspace(0, count - 1, min(count, _PROMPTS)).round().astype(int).tolist()
    run = Simulator(latencies, trace).run(
        policy,
        degrees={Role.TARGET: degree},
        ranks={Role.TARGET: ranks},
        prompt_indices=indices,
        seed=seed,
        max_new_tokens=None if prompts else _TOKENS,
    )
    whole = (rounds_of(timeline)[:-1] for timeline in run.timelines)
    return {index: rounds for index, rounds in zip(indices, whole, strict=True) if rounds}


def rounds_of(timeline: Timeline) -> list[Round]:
    """Rounds of a request; the last one may have been cut short by its end."""
    return list(_rounds(timeline.spans))


def _rounds(spans: Sequence[Span]) -> Iterator[Round]:
    drafts: list[int] = []
    host: list[tuple[Phase, int]] = []
    verified = tokens = read = 0
    has_drafted = False  # and so read the prompt
    for span in spans:
        if verified and span.phase not in _HOST:
            yield Round(tuple(drafts), verified, tokens, tuple(host), read)
            drafts, host, verified, tokens, read = [], [], 0, 0, 0
        if span.phase is Phase.EXPAND:
            drafts.append(span.rows)
            has_drafted = True
        elif span.phase is Phase.VERIFY:
            verified = span.rows
        elif span.phase is Phase.PREFILL and span.model is Role.DRAFT:
            read += span.rows * has_drafted
        elif span.phase is Phase.COMPACT or (verified and span.phase in _HOST):
            host.append((span.phase, span.rows))
            tokens += span.tokens
    if verified:
        yield Round(tuple(drafts), verified, tokens, tuple(host), read)
