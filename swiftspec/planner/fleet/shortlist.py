"""Options that are worth simulating as replicas of a fleet: plausible leaders at some load, in closed form.

Candidates are the best option of every policy on every split for a single request, and the same with fewer rows: rows
cost more the more requests share a step.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.option import Key, Option, Split
from swiftspec.planner.search.simulations import RankedOption
from swiftspec.planner.under_load.load_curves import LoadCurve

_FEWER_ROWS = (2, 4, 8)  # divisors of the rows of a verification
_NUM_LEADERS = 1  # at each load, of all policies
_NUM_PLAIN = 1  # splits of plain decoding, beside the fastest one
_NUM_LOADS = 5
_WIDEST_RANGE, _LEAST_RANGE = 16.0, 4.0  # highest load over lowest
# An estimate of the highest load may be too low: what serves this much less than asked for is still considered.
_CAPACITY_MARGIN = 1.25


class Estimate(NamedTuple):
    """An option with its figures for a single request, and its estimated speed under load."""

    found: RankedOption
    curve: LoadCurve

    @property
    def option(self) -> Option:
        return self.found.option

    def user_tokens_per_s(self, per_device: float) -> float:
        """Speed that a user sees at a load per device."""
        return self.curve.user_tokens_per_s(per_device * self.option.num_devices / _CAPACITY_MARGIN)

    def capacity(self, tpot_s: float | None) -> float:
        return self.curve.capacity(tpot_s) / self.option.num_devices


def with_fewer_rows(
    ranking: Sequence[RankedOption], options: Sequence[Option], closed: ClosedForms
) -> Iterator[RankedOption]:
    """The best options, and for each the most plausible ones with fewer rows, their figures scaled in closed form."""
    yield from ranking
    shapes: dict[tuple[str, Split], list[Option]] = {}
    for option in options:
        shapes.setdefault((option.policy.name, option.split_key), []).append(option)
    for leader in ranking:
        rows, alone = leader.option.policy.target_rows, closed.estimate(leader.option)
        seen: set[Key] = set()
        for divisor in _FEWER_ROWS:
            there = shapes.get((leader.option.policy.name, leader.option.split_key), [])
            fitting = [one for one in there if 1 < one.policy.target_rows * divisor <= rows]
            if not fitting:
                continue
            best = max(fitting, key=closed.estimate)
            if best.key not in seen:
                seen.add(best.key)
                slower = alone / closed.estimate(best)
                yield leader._replace(
                    option=best,
                    tokens_per_s=leader.tokens_per_s / slower,
                    tpot_s=leader.tpot_s * slower,
                    score=leader.score / slower,
                    estimated=True,
                )


def load_grid(estimates: Sequence[Estimate], *, least: float, tpot_s: float | None) -> tuple[float, ...]:
    """Loads per device to simulate, in requests per second: up to a little more than the most that anyone may serve.

    least: load per device if all devices are used.
    """
    most = _CAPACITY_MARGIN * max(one.capacity(tpot_s) or one.capacity(None) for one in estimates)
    lowest = min(max(least, most / _WIDEST_RANGE), most / _LEAST_RANGE)
    return tuple(np.geomspace(lowest, most, _NUM_LOADS).tolist())


def shortlist(estimates: Sequence[Estimate], loads: Sequence[float], *, tpot_s: float | None) -> list[Estimate]:
    """Leaders at any of the loads, by where they draft; the best for a single request; and plain decoding."""
    chosen: dict[Key, Estimate] = {}

    def take(rank: Callable[[Estimate], float], among: Sequence[Estimate], count: int) -> None:
        """The best of so many policies and splits."""
        best: dict[tuple[str, Split], Estimate] = {}
        for one in sorted(among, key=rank, reverse=True):
            if rank(one) > 0:
                best.setdefault((one.option.policy.name, one.option.split_key), one)
        for one in list(best.values())[:count]:
            chosen.setdefault(one.option.key, one)

    layouts = dict.fromkeys(one.option.policy.layout for one in estimates)
    for load in loads:
        at_load = partial(Estimate.user_tokens_per_s, per_device=load)
        take(at_load, estimates, _NUM_LEADERS)
        for layout in layouts:
            take(at_load, [one for one in estimates if one.option.policy.layout is layout], 1)
    take(lambda one: one.found.tokens_per_s, estimates, 1)
    take(lambda one: one.capacity(tpot_s), estimates, _NUM_LEADERS)
    plain = [one for one in estimates if one.option.policy.plain]
    take(lambda one: one.capacity(tpot_s), plain, _NUM_PLAIN)
    take(lambda one: one.found.tokens_per_s, plain, 1)
    return list(chosen.values())
