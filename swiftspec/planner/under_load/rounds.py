"""Rounds of one request, recorded where both models share devices: the same ones at any load.

A round's tokens and rows do not depend on how long forwards take, nor on who shares its steps. So the rounds of a few
simulated requests tell what any number of requests ask for: a `RecordedRequest` asks for one forward after another,
and `RoundArrays` has the steps of requests that all begin a round at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.scheduler.asks import Ask
from swiftspec.timing.timeline import Phase, Timeline

_DRAWN = 2048  # rounds of an acceptance that is given
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


def looked_up_rounds(survival: Sequence[float], *, seed: int) -> list[Round]:
    """Rounds of chains that are looked up in the text, of which this share is accepted up to each token."""
    shares = -np.diff((1.0, *survival, 0.0))
    accepted = np.random.default_rng(seed).choice(len(shares), size=_DRAWN, p=shares / shares.sum())
    return [Round((), verify_rows=len(shares), tokens=1 + count) for count in accepted.tolist()]


def rounds_of(timeline: Timeline) -> Iterator[Round]:
    """Rounds of a request; the last one may have been cut short by its end."""
    drafts: list[int] = []
    host: list[tuple[Phase, int]] = []
    verified = tokens = read = 0
    has_drafted = False  # and so read the prompt
    for span in timeline.spans:
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


class Forward(NamedTuple):
    """A forward to ask for. cached: tokens in its model's cache before it, less those of the text."""

    model: Role
    rows: int
    is_prefill: bool
    cached: int


def prefill(model: Role, tokens: int) -> Forward:
    """The reading of a text of which the model knows nothing."""
    return Forward(model, tokens, True, -tokens - 1)


def forwards_of(one: Round) -> tuple[Forward, ...]:
    """Forwards of a round in order; the last one is its verification."""
    found = [Forward(Role.DRAFT, one.read_rows, True, -one.read_rows)] if one.read_rows else []
    cached = -one.draft_rows[0] if one.draft_rows else 0
    for rows in one.draft_rows:
        found.append(Forward(Role.DRAFT, rows, False, cached))
        cached += rows
    return (*found, Forward(Role.TARGET, one.verify_rows, False, -1))


@dataclass(slots=True, eq=False, kw_only=True)
class RecordedRequest:
    """State of a request that runs.

    text: tokens of its prompt and of its output so far.
    left: tokens of its output that are not yet written.
    round: index of its round.
    level: the next forward of the round; -1 while the draft reads the text.
    is_read: whether the draft has read the text, or does.
    cached, num_read: tokens in the model's cache before that ask, and those of it that were computed.
    """

    number: int
    text: int
    left: int
    round: int
    level: int = 0
    is_read: bool = False
    ask: Ask | None = None
    cached: int = 0
    num_read: int = 0

    @property
    def begins_round(self) -> bool:
        """Whether it asks for the first forward of a round."""
        return self.level == 0 and self.ask is not None and not self.ask.is_prefill

    def ask_for(self, forward: Forward, *, now_s: float) -> None:
        self.cached, self.num_read = max(0, self.text + forward.cached), 0
        self.ask = Ask(
            self.number,
            forward.model,
            ForwardKind.EXACT,
            forward.rows,
            is_prefill=forward.is_prefill,
            is_elastic=forward.model is Role.TARGET and not forward.is_prefill,
            since_s=now_s,
        )

    def ask_next(self, forwards: Sequence[Forward], *, now_s: float) -> None:
        """Ask for the next of a round's forwards; before the first draft for the reading of the text."""
        if len(forwards) > 1 and not self.is_read:
            self.is_read = True
            if self.text > 1:
                self.level = -1
                self.ask_for(prefill(Role.DRAFT, self.text - 1), now_s=now_s)
                return
        self.ask_for(forwards[self.level], now_s=now_s)


def phase_of(ask: Ask) -> Phase:
    """The phase that its latency is looked up by."""
    if ask.is_prefill:
        return Phase.PREFILL
    return Phase.EXPAND if ask.model is Role.DRAFT else Phase.VERIFY


class Column(NamedTuple):
    """A step of a round that requests share.

    level: of the draft's forward; None for the verification. rows: of each request in it. attended: rows times slots
    that they attend to.
    """

    level: int | None
    rows: list[int]
    attended: float


class RoundArrays:
    """Recorded rounds."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self.num_levels = max((len(one.draft_rows) for one in rounds), default=0)
        self._rows = np.zeros((len(rounds), self.num_levels + 1), np.int64)
        for number, one in enumerate(rounds):
            self._rows[number, : len(one.draft_rows)] = one.draft_rows
            self._rows[number, -1] = one.verify_rows
        # The first forward has the text's last tokens; later ones have the rows of those before it in the cache, too.
        self._cached = np.cumsum(self._rows, axis=1) - self._rows - self._rows[:, :1]
        self._cached[:, -1] = -1
        self._reads = np.array([one.read_rows > 0 for one in rounds])

    def columns(self, rounds: Sequence[int], texts: Sequence[int], *, max_rows: int) -> list[Column] | None:
        """Steps of a round of requests at these rounds, whose texts have so many tokens.

        None if not all rows of a step fit into it, or a draft first reads text.
        """
        indices = np.array(rounds)
        rows = self._rows[indices]
        if self._reads[indices].any() or (len(rounds) > 1 and int(rows.sum(axis=0).max()) > max_rows):
            return None
        slots = np.maximum(0, np.array(texts)[:, None] + self._cached[indices])
        attended = (rows * slots).sum(axis=0).tolist()
        return [
            Column(level if level < self.num_levels else None, present, attended[level])
            for level, column in enumerate(rows.T.tolist())
            if (present := [count for count in column if count])
        ]
