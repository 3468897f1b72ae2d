"""Draft pools: several targets whose requests are drafted for on the same devices."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from swiftspec.planner.fleet.kinds import Kind
from swiftspec.planner.fleet.sizing import Sized
from swiftspec.policies import Layout

__all__ = ["loads_near_capacity", "pays", "pools_of", "sharing_candidate"]

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
    return min(own, key=lambda one: one.devices, default=None)


def pools_of(kind: Kind, *, most_devices: int) -> Iterator[Kind]:
    """Pools of 2 and 4 targets for one draft group, as far as there are devices."""
    for num_targets in _TARGETS:
        pool = replace(kind, num_targets=num_targets, num_drafts=1)
        if pool.num_devices <= most_devices:
            yield pool


def loads_near_capacity(own: Sized) -> tuple[float, ...]:
    """The highest load per device that a replica with its own draft stands, and the next one, if it was simulated."""
    loads = sorted(own.points)
    failed = [number for number, load in enumerate(loads) if not own.points[load].keeps]
    first = failed[0] if failed else len(loads)
    return tuple(loads[max(0, first - 1) : first + 1])


def pays(pool: Sized, own: Sized) -> bool:
    """Whether a pool stands a load per device that own drafts do not, or serves users faster at one that both do."""
    return any(
        point.keeps and (not own.points[load].keeps or point.user_tokens_per_s > own.points[load].user_tokens_per_s)
        for load, point in pool.points.items()
    )
