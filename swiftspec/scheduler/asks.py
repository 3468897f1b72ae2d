"""Asks and steps: the forwards that programs wait for, and those of them that a device group computes together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swiftspec.policies.effects import (
    DraftForward,
    Forward,
    ForwardKind,
    Prefill,
    Role,
    TargetExit,
    TargetFinish,
    TargetForward,
)


class Ask(NamedTuple):
    """A forward that a request's program waits for.

    request: its number. Requests that were admitted earlier have smaller ones, until one is preempted.
    num_rows: rows of the forward; of a prefill, the tokens that are left.
    is_prefill: whether the rows join the prefix: they may be computed in pieces, in several steps.
    is_elastic: whether it is a verification of which an answer for the first rows will do.
    since_s: when the program asked.
    num_overtaken: steps for other asks since then.
    log_probs: of the paths to its rows after the first one, as the draft sees them, if it is known.
    """

    request: int
    model: Role
    kind: ForwardKind
    num_rows: int
    is_prefill: bool = False
    is_elastic: bool = False
    since_s: float = 0.0
    num_overtaken: int = 0
    log_probs: tuple[float, ...] = ()


class Grant(NamedTuple):
    """Rows of a request's ask that are computed, the first ones."""

    request: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward of a device group over rows of several requests.

    grants: at least one, each of another request.
    """

    model: Role
    kind: ForwardKind
    grants: tuple[Grant, ...]

    @property
    def num_rows(self) -> int:
        """Rows of all requests together."""
        return sum([grant.num_rows for grant in self.grants])


def ask_of(request: int, effect: Forward, *, num_halfway: int, is_elastic: bool, since_s: float) -> Ask:
    """The ask that a forward is. num_halfway: rows of the exit before a `TargetFinish`."""
    exact = ForwardKind.EXACT
    match effect:
        case Prefill():
            return Ask(request, effect.role, exact, len(effect.tokens), is_prefill=True, since_s=since_s)
        case DraftForward():
            kind = ForwardKind.LAYER_PARALLEL if effect.fuzzy else exact
            return Ask(request, Role.DRAFT, kind, len(effect.rows), since_s=since_s)
        case TargetForward(rows, log_probs):
            return Ask(
                request, Role.TARGET, exact, len(rows), is_elastic=is_elastic, since_s=since_s, log_probs=log_probs
            )
        case TargetExit(rows):
            return Ask(request, Role.TARGET, ForwardKind.FIRST_HALF, len(rows), since_s=since_s)
        case TargetFinish():
            return Ask(request, Role.TARGET, ForwardKind.SECOND_HALF, num_halfway, since_s=since_s)


def equal_shares(wanted: Sequence[int], num_rows: int) -> list[int]:
    """Equal shares of `num_rows`, one at least for each; what one does not want is the others'."""
    left = max(num_rows, len(wanted))
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for count, index in zip(range(len(order), 0, -1), order, strict=True):
        shares[index] = min(wanted[index], left // count)
        left -= shares[index]
    return shares
