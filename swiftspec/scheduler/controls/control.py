"""Interface of a control: what it sees of a round's requests, and what it decides."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from swiftspec.scheduler.costs import RoundCosts


class Demand(NamedTuple):
    """Demand of one request for rows of a round.

    survival: probability that each of its rows after the root is accepted; it never rises. tokens_due: tokens that it
    needs from this round to keep its limit on the time per token; 0 without a limit.
    """

    survival: tuple[float, ...]
    tokens_due: float = 0.0


class Control(Protocol):
    """Division of a round's rows among its requests. Pure: it keeps nothing between rounds.

    learns: whether it depends on the rows' survival, so that some rounds are to be served whole to learn it.
    weighs_drafts: whether it goes by the draft's own probabilities of this round's rows, where they are known.
    """

    __slots__ = ()

    @property
    def learns(self) -> bool:
        return True

    @property
    def weighs_drafts(self) -> bool:
        return False

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each request's verification, the root included: from 1 to 1 + len(survival).

        Together they are at most `max_rows`, or one each if there are more requests than that. What is to be drafted
        follows from them: the rows below a root take as many draft forwards, one after another.
        """
