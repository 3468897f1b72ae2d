"""Goals of a plan."""

import pytest

from swiftspec.artifacts.goal import Goal, Objective, cost_per_million


def test_the_fewest_devices_need_something_to_reach() -> None:
    with pytest.raises(ValueError, match="min_tokens_per_s is missing"):
        Goal(objective=Objective.DEVICES)
    for limit in ("min_tokens_per_s", "tpot_s", "ttft_s"):
        assert Goal.model_validate({"objective": "devices", limit: 0.01}).is_limited
    assert not Goal(max_devices=2, splits=("1+1",)).is_limited


def test_a_million_tokens_cost_what_the_devices_cost_meanwhile() -> None:
    # 10,000 s of two devices at 3.6 an hour each.
    assert cost_per_million(3.6, 2, 100.0) == pytest.approx(20.0)
