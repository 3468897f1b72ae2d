"""The regret of a search, on figures that are known."""

import pytest

from tools.checks.searches import regrets


def test_regret_is_the_share_of_speed_behind_the_best_of_every_option() -> None:
    best = {None: 100.0, "serial_tree": 80.0, "ssd": 50.0}
    found = regrets({None: 90.0, "serial_tree": 84.0}, best)
    assert found == pytest.approx({None: 0.1, "serial_tree": -0.05})
