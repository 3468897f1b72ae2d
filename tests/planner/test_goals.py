import numpy as np
import pytest

from swiftspec.artifacts.plan import Goal, Objective
from swiftspec.planner.search.goals import score, score_of_speed

TOKENS = np.array([100.0, 300.0])
REQUEST_S = np.array([2.0, 3.0])
TPOT_S = np.array([0.02, 0.01])


def score_for(objective: Objective, *, price_per_hour: float | None = None) -> float:
    goal = Goal(objective=objective, price_per_hour=price_per_hour)
    return float(score(goal, tokens=TOKENS, request_s=REQUEST_S, tpot_s=TPOT_S, num_devices=4))


def test_every_objective_has_a_score() -> None:
    assert score_for(Objective.TOKENS_PER_S) == pytest.approx(400 / 5)
    assert score_for(Objective.TPOT) == pytest.approx(1 / 0.015)
    assert score_for(Objective.TPOT_P95) == pytest.approx(1 / 0.0195)  # linear between the two requests
    assert score_for(Objective.TOKENS_PER_GPU) == pytest.approx(400 / 5 / 4)
    # Four devices for an hour cost 10; 288 000 tokens come of it.
    assert score_for(Objective.COST, price_per_hour=2.5) == pytest.approx(80 * 3600 / 10)


def test_scores_of_resamples_reduce_some_axes() -> None:
    stacked = [np.stack([values, values[::-1]])[:, None, :] for values in (TOKENS, REQUEST_S, TPOT_S)]
    tokens, request_s, tpot_s = (np.broadcast_to(values, (2, 5, 2)) for values in stacked)
    scores = score(Goal(), tokens=tokens, request_s=request_s, tpot_s=tpot_s, num_devices=1, axes=(0, 2))
    assert scores.shape == (5,)
    assert scores == pytest.approx(80.0)


def test_cost_without_a_price_is_refused() -> None:
    with pytest.raises(ValueError, match="price_per_hour is missing; the objective cost needs what a device costs"):
        Goal(objective=Objective.COST)


def test_a_speed_alone_is_worth_what_devices_and_price_make_of_it() -> None:
    assert score_of_speed(Goal(objective=Objective.TPOT), 80.0, 4) == 80.0
    assert score_of_speed(Goal(objective=Objective.TOKENS_PER_GPU), 80.0, 4) == 20.0
    assert score_of_speed(Goal(objective=Objective.COST, price_per_hour=2.0), 80.0, 4) == pytest.approx(36_000)
