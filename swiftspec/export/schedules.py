"""Draft tokens by batch size: as ranges, and as an engine can express them."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.engines import Engine
from swiftspec.engines.words import LengthRange, Method

__all__ = ["expressible", "length_ranges"]

_NEVER = "Draft tokens by batch size: {engine} always drafts as many."
_NOT_IMITATED = "Draft tokens by batch size: one mean acceptance holds for all lengths, so their number is fixed."
_FALLING = "More draft tokens for more requests at once: the first length of {engine} has to be the largest."


def length_ranges(lengths: Sequence[DraftLength], last: int) -> tuple[LengthRange, ...]:
    """Draft tokens by ranges of batch sizes up to `last`; each size has the length of the next smaller one given."""
    ordered = sorted((each for each in lengths if each.batch <= last), key=lambda each: each.batch)
    ends = [following.batch - 1 for _, following in pairwise(ordered)] + [last]
    ranges: list[LengthRange] = []
    for each, end in zip(ordered, ends, strict=False):
        if ranges and ranges[-1].num_draft_tokens == each.num_draft_tokens:
            ranges[-1] = ranges[-1]._replace(last=end)
        else:
            ranges.append(LengthRange(each.batch if ranges else 1, end, each.num_draft_tokens))
    return tuple(ranges)


def expressible(
    engine: Engine, wanted: tuple[LengthRange, ...], *, method: Method | None, imitates: bool
) -> tuple[tuple[LengthRange, ...], tuple[str, ...]]:
    """The part of a schedule that an engine has, and sentences about the rest.

    imitates: whether acceptance is imitated, for which all lengths need acceptance by position.
    """
    if not wanted:
        return (), ()
    words = engine.schedule
    if words is None or method not in words.methods:
        return (), (words.only_others if words else _NEVER.format(engine=engine.full_name),)
    if imitates and engine.imitation is not None and engine.imitation.lost:
        return (), (_NOT_IMITATED,)
    if not words.falls:
        return wanted, ()
    least = accumulate((each.num_draft_tokens for each in wanted), min)
    falling = tuple(each._replace(num_draft_tokens=length) for each, length in zip(wanted, least, strict=True))
    return falling, (_FALLING.format(engine=engine.full_name),) if falling != wanted else ()
