"""The fewest devices that keep to a goal's limits: the search for the fastest option, on fewer and fewer devices."""

from collections.abc import Callable

from swiftspec.artifacts.plan import Goal
from swiftspec.planner.decision import Decision, OutOfReachError
from swiftspec.planner.simulations import RankedOption

__all__ = ["fewest_devices"]


def fewest_devices(
    fastest: Callable[[int], Decision], ranking: Callable[[], list[RankedOption]], goal: Goal, *, most: int
) -> Decision:
    """The fastest option on the fewest devices with which anything keeps to the limits.

    What keeps to them on some devices does so where there are more, so that halving the range would do; what is known
    of every split after the first search is a better guess.

    Parameters
    ----------
    fastest : callable
        The decision for the fastest option on so many devices at most. OutOfReachError if none keeps to the limits.
    ranking : callable
        The best of every policy on every split, by all that was simulated so far.
    most : int
        Devices that there are.

    Raises
    ------
    ValueError
        If nothing keeps to the limits on all of them: OutOfReachError.
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
