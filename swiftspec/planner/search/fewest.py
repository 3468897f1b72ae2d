"""The fewest devices that meet a goal's limits: the search for the fastest option, on fewer and fewer devices."""

from collections.abc import Callable

from swiftspec.artifacts.plan import Goal
from swiftspec.planner.search.decision import Decision, OutOfReachError
from swiftspec.planner.search.simulations import RankedOption

__all__ = ["fewest_devices"]


def fewest_devices(
    fastest: Callable[[int], Decision], ranking: Callable[[], list[RankedOption]], goal: Goal, *, most: int
) -> Decision:
    """The fastest option on the fewest devices with which any option meets the limits.

    An option that meets them on some devices does so on more, so bisection would do; the first search, which covers
    every split, gives a better guess.

    Parameters
    ----------
    fastest : callable
        The decision for the fastest option on at most N devices. OutOfReachError if none meets the limits.
    ranking : callable
        The best option of every policy on every split, by all simulations so far.
    most : int
        Available devices.

    Raises
    ------
    ValueError
        If nothing meets the limits on all of them: OutOfReachError.
    """
    best = fastest(most)
    least = 1
    while least < (devices := best.chosen.option.num_devices):
        hopeful = {found.option.num_devices for found in ranking() if found.reach(goal) >= 1}
        guess = min((count for count in hopeful if least <= count < devices), default=devices - 1)
        try:
            best = fastest(guess)
        except OutOfReachError:
            least = guess + 1
    return best
