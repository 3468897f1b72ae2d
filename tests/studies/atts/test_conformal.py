import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.studies.atts.conformal import expected_share, p_value, perplexity, threshold
from swiftspec.studies.atts.document import Rule

SCORES = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=20)  # with ties
BUDGETS = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


@pytest.mark.parametrize(
    ("num_scores", "budget", "rank"),
    [
        (9, 0.4, 6),  # 0.6 x 10
        (10, 0.4, 7),  # 0.6 x 11 = 6.6
        (16, 0.4, 11),  # 0.6 x 17 = 10.2
        (1600, 0.4, 961),
        (9, 0.3, 7),  # 0.7 x 10, which floats make 7.000000000000001
        (19, 0.05, 19),
    ],
)
def test_the_threshold_is_the_n_plus_1_quantile(num_scores: int, budget: float, rank: int) -> None:
    calibration = [float(number) for number in range(num_scores, 0, -1)]
    assert threshold(calibration, budget) == rank


def test_the_least_and_the_largest_budget_take_over_nothing_and_everything() -> None:
    for rule in Rule:
        assert threshold([1.0, 2.0], 0.0, rule) >= 2.0
        assert threshold([1.0, 2.0], 1.0, rule) == -math.inf
    assert threshold([1.0] * 18, 0.05) == math.inf  # 18 scores say nothing about the highest twentieth


@given(SCORES, BUDGETS, st.integers(-1, 13).map(float))
def test_above_the_threshold_are_the_p_values_up_to_the_budget(
    calibration: list[float], budget: float, score: float
) -> None:
    assert (score > threshold(calibration, budget)) == (p_value(score, calibration) <= budget + 1e-12)


@given(SCORES, BUDGETS, st.integers(-1, 13).map(float))
def test_the_authors_rule_is_a_share_of_the_calibration(calibration: list[float], budget: float, score: float) -> None:
    share = np.mean(np.array(calibration) < score)
    assert (score > threshold(calibration, budget, Rule.SHARE)) == (share >= 1 - budget - 1e-12)


@given(st.integers(1, 40), BUDGETS)
def test_the_expected_share_counts_the_places_of_a_new_score(num_scores: int, budget: float) -> None:
    """Among exchangeable scores each place is as likely."""
    for rule in Rule:
        above = threshold([float(number) for number in range(num_scores)], budget, rule)
        places = [number - 0.5 for number in range(num_scores + 1)]
        assert expected_share(num_scores, budget, rule) == np.mean([place > above for place in places])
    assert expected_share(num_scores, budget) <= budget + 1e-12


@pytest.mark.parametrize(
    ("num_scores", "rule", "share"),
    [
        (1600, Rule.CONFORMAL, 0.40),  # all questions together
        (1600, Rule.SHARE, 0.40),
        (19, Rule.CONFORMAL, 0.40),
        (16, Rule.CONFORMAL, 6 / 17),  # a question's own: whole ranks are less than the budget, or more
        (16, Rule.SHARE, 7 / 17),
    ],
)
def test_exchangeable_scores_are_taken_over_as_often_as_expected(num_scores: int, rule: Rule, share: float) -> None:
    rng = np.random.default_rng(num_scores)
    taken = []
    for _ in range(max(40, 6000 // num_scores)):
        drawn = 1 + rng.lognormal(size=num_scores + 200)
        level = threshold(drawn[:num_scores].tolist(), 0.4, rule)
        taken.append(float(np.mean(drawn[num_scores:] > level)))
    assert expected_share(num_scores, 0.4, rule) == pytest.approx(share, abs=1e-3)
    assert np.mean(taken) == pytest.approx(share, abs=0.02)


def test_scores_with_ties_are_taken_over_no_more_often() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 4, size=(2000, 20)).astype(float)
    taken = [row[-1] > threshold(row[:-1].tolist(), 0.4) for row in drawn]
    assert np.mean(taken) < 0.4


def test_perplexity() -> None:
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="log_probs are empty"):
        perplexity([])


@pytest.mark.parametrize(
    ("calibration", "budget", "message"), [([], 0.4, "calibration is empty"), ([1.0], 1.2, "budget is 1.2")]
)
def test_what_gives_no_threshold_is_refused(calibration: list[float], budget: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        threshold(calibration, budget)


def test_the_published_decisions_are_taken_again() -> None:
    """MATH-500 by R1-Distill-Llama-8B and QwQ-32B: perplexities and decisions of 1600 samples.

    Figures of menik1126/Asynchronous-Test-Time-Scaling @bedf81d7, of its `results` and `evaluation`; of the decisions
    that `conformal` takes otherwise seven are known: it is stricter.
    """
    with np.load(Path(__file__).with_name("published_decisions.npz")) as published:
        calibration, scores, taken_over = (published[name] for name in ("calibration", "scores", "taken_over"))
    assert (len(calibration), len(scores)) == (1600, 6065)
    assert np.mean(taken_over) == pytest.approx(0.4134, abs=1e-4)
    by_share, by_rank = (scores > threshold(calibration.tolist(), 0.4, rule) for rule in (Rule.SHARE, Rule.CONFORMAL))
    assert np.array_equal(by_share, taken_over)
    assert np.count_nonzero(by_rank != taken_over) == 7
