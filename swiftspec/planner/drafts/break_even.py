"""The load up to which a kind of draft beats plain decoding."""

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log

from swiftspec.artifacts.kinds import DraftingKind

__all__ = ["last_gain", "with_break_even"]


def with_break_even(kind: DraftingKind, plain: DraftingKind, loads: Sequence[int]) -> DraftingKind:
    """The kind at the loads that were asked for, and the load up to which it beats plain decoding at all of them."""
    asked = tuple(point for point in kind.points if point.clients in loads)
    gains = [
        (point.clients, point.user_tokens_per_s / other.user_tokens_per_s)
        for point in kind.points
        if (other := plain.at(point.clients)) is not None
    ]
    pays_up_to = None if kind is plain else last_gain(gains)
    is_open = pays_up_to is not None and pays_up_to == gains[-1][0]
    return kind.model_copy(update={"points": asked, "pays_up_to": pays_up_to, "is_open": is_open})


def last_gain(gains: Sequence[tuple[int, float]]) -> float | None:
    """The load at which a gain falls to 1 for good, linear in the load's logarithm; the last one if it does not."""
    if gains and gains[-1][1] > 1:
        return float(gains[-1][0])
    for (load, gain), (more, less) in reversed(list(pairwise(gains))):
        if gain > 1 >= less:
            share = (gain - 1) / (gain - less)
            return exp(log(load) + share * (log(more) - log(load)))
    return None
