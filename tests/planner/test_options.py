"""Options of a search that cannot be searched."""

import pytest

from swiftspec.artifacts.goal import Goal, split_devices
from swiftspec.planner.search.options import SearchOptions


@pytest.mark.parametrize(("split", "devices"), [("8", 8), ("4+4", 8), ("2x2+1", 5), ("3x2", 6)])
def test_a_split_takes_so_many_devices(split: str, devices: int) -> None:
    assert split_devices(split) == devices
    SearchOptions(goal=Goal(splits=(split,))).check(num_devices=devices)
    with pytest.raises(ValueError, match=rf"takes {devices} devices; expected at most {devices - 1}$"):
        SearchOptions(goal=Goal(splits=(split,))).check(num_devices=devices - 1)


@pytest.mark.parametrize("split", ["", "4-4", "0+1", "1+", "1+1+1", "a"])
def test_what_is_no_split_is_refused(split: str) -> None:
    with pytest.raises(ValueError, match=f"^split is '{split.replace('+', '[+]')}'; expected devices of the target "):
        SearchOptions(goal=Goal(splits=(split,))).check(num_devices=8)


def test_a_limit_of_devices_that_limits_nothing_is_refused() -> None:
    SearchOptions(goal=Goal(max_devices=8)).check(num_devices=8)
    with pytest.raises(ValueError, match="max_devices is 64; there are 8, and this limit only leaves some idle"):
        SearchOptions(goal=Goal(max_devices=64)).check(num_devices=8)


@pytest.mark.parametrize(
    ("options", "num_devices", "complaint"),
    [
        (SearchOptions(policy="magic"), 1, "policy is 'magic'; expected one of auto"),
        (SearchOptions(), 0, "num_devices is 0; expected at least 1"),
        (SearchOptions(num_jobs=0), 1, "num_jobs is 0; expected at least 1, or -1"),
    ],
)
def test_what_cannot_be_searched_is_refused(options: SearchOptions, num_devices: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        options.check(num_devices=num_devices)
