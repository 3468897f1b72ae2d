"""Draft pools: several targets whose requests are drafted for on the same devices."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from swiftspec.planner.fleet.sizing import Sized
from swiftspec.policies import Layout

__all__ = ["pools_of", "saves", "sharing_candidate"]

_TARGETS = (2, 4)  # per draft group


def sharing_candidate(sized: Sequence[Sized]) -> Sized | None:
    """The kind whose drafts are worth sharing: of those with a draft on devices of its own, the one on the fewest."""
    own = [
        one
        for one in sized
        if one.kind.option.policy.layout is Layout.DISAGGREGATED
        and one.kind.option.policy.target_groups == 1
        and one.high is not None
    ]
    return min(own, key=lambda one: (one.high not in one.exact, one.devices), default=None)


def pools_of(own: Sized, *, most_devices: int) -> Iterator[Sized]:
    """Pools of 2 and 4 targets for one draft group, as far as there are devices, and the number of each to try.

    A draft that is shared answers no sooner: pools need at least as many targets as replicas with their own drafts.
    """
    assert own.high is not None, "a sharing candidate"
    for num_targets in _TARGETS:
        pool = replace(own.kind, num_targets=num_targets, num_drafts=1)
        if most := most_devices // pool.num_devices:
            high = min(most, math.ceil(own.high / num_targets))
            yield Sized(kind=pool, low=min(own.low // num_targets, high - 1), high=high, doubtful=high - 1)


def saves(pool: Sized, own: Sized) -> bool:
    """Whether the number of pools to try next would need fewer devices than own drafts."""
    count = pool.next_count
    return count is not None and count * pool.kind.num_devices < own.devices
