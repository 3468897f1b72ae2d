"""A request that replays recorded rounds: where it stands, and the forward that it asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swiftspec.planner.under_load.rounds import Round
from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.scheduler.asks import Ask
from swiftspec.timing.timeline import Phase

__all__ = ["Forward", "RecordedRequest", "forwards_of", "phase_of", "prefill"]


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

    Attributes
    ----------
    number : int
    text : int
        Tokens of its prompt and of its output so far.
    left : int
        Tokens of its output that are not yet written.
    round : int
        Index of its round.
    level : int
        The next forward of the round; -1 while the draft reads the text.
    is_read : bool
        Whether the draft has read the text, or does.
    ask : Ask or None
    cached, num_read : int
        Tokens in the model's cache before that ask, and those of it that were computed.
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
        """Ask for a forward."""
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
