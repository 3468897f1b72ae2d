"""Gains of a kind of draft over plain decoding, and the load up to which there is one."""

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log

from swiftspec.artifacts.gain import Gain
from swiftspec.artifacts.kinds import DraftingKind, KindPoint


def with_gains(kind: DraftingKind, plain: DraftingKind, loads: Sequence[int], *, spread: float) -> DraftingKind:
    """The kind at the loads that were asked for, and the load up to which it beats plain decoding at all of them.

    spread: relative standard deviation of a gain whose acceptance is known.
    """
    gains = {
        point.clients: point.user_tokens_per_s / other.user_tokens_per_s
        for point in kind.points
        if (other := plain.at(point.clients)) is not None and kind is not plain
    }
    asked = [point for point in kind.points if point.clients in loads]
    points = tuple(
        _compared(point, other, gain=Gain.within(gain, spread=spread, acceptance=kind.acceptance_spread))
        if (gain := gains.get(point.clients)) and (other := plain.at(point.clients))
        else point.model_copy(update={"pays_above": {}})
        for point in asked
    )
    pays_up_to = last_gain(list(gains.items()))
    is_open = pays_up_to is not None and pays_up_to == max(gains)
    return kind.model_copy(update={"points": points, "pays_up_to": pays_up_to, "is_open": is_open})


def _compared(point: KindPoint, plain: KindPoint, *, gain: Gain) -> KindPoint:
    """A point with its gain, and with tokens per round at which its shapes' rounds take as long as plain decoding.

    A round takes the same whatever it brings, so these need no acceptance.
    """
    pays_above = {tokens: round_s * plain.user_tokens_per_s for tokens, round_s in point.pays_above.items()}
    return point.model_copy(update={"gain": gain, "pays_above": pays_above})


def last_gain(gains: Sequence[tuple[int, float]]) -> float | None:
    """The load at which a gain falls to 1 for good, linear in the load's logarithm; the last one if it does not."""
    if gains and gains[-1][1] > 1:
        return float(gains[-1][0])
    for (load, gain), (more, less) in reversed(list(pairwise(gains))):
        if gain > 1 >= less:
            share = (gain - 1) / (gain - less)
            return exp(log(load) + share * (log(more) - log(load)))
    return None
