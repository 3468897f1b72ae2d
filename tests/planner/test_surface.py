import numpy as np
import pytest

from swiftspec.artifacts.plan import Goal
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.stages import Surface
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec

GOAL = Goal()
SPLITS = ((2, 1), (1, 2))
OPTIONS = [
    Option.placed(SwiftSpec(verify_rows=rows, expand_rows=leaves), sizes)
    for rows in (4, 8, 12)
    for leaves in (2, 4, 8)
    for sizes in SPLITS
]


def speed(option: Option) -> float:
    """A product of effects."""
    shape = option.policy
    assert isinstance(shape, SwiftSpec)
    return 100 * (1 + shape.verify_rows / 40) * (1 + shape.expand_rows / 30) * (1.2 if option.sizes == (2, 1) else 1.0)


def outcome(option: Option, tokens_per_s: float) -> Outcome:
    tokens = np.array([50])
    request_s = np.array([[50 / tokens_per_s]])
    return Outcome(option=option, tokens=tokens, request_s=request_s, tpot_s=request_s / 50, metrics=None, seconds={})


def expected(tried: list[Option], noise: np.ndarray, weights: list[float] | None = None) -> np.ndarray:
    """Tokens/s of all options from some of them, with closed forms that know nothing."""
    outcomes = [outcome(option, speed(option) * luck) for option, luck in zip(tried, noise, strict=True)]
    estimates = {option.key: 10.0 for option in OPTIONS}
    surface = Surface(outcomes, weights or [1.0] * len(tried), GOAL, estimates)
    return np.array([ranked.tokens_per_s for ranked in surface.expected(OPTIONS)])


def test_what_was_not_tried_together_follows_from_its_fields() -> None:
    tried = [option for number, option in enumerate(OPTIONS) if number % 4]
    found = expected(tried, np.ones(len(tried)), [1e6] * len(tried))  # so often that the ridge has nothing to say
    assert found == pytest.approx([speed(option) for option in OPTIONS], rel=0.01)


def test_luck_averages_out() -> None:
    noise = np.exp(0.08 * np.random.default_rng(1).standard_normal(len(OPTIONS)))
    truth = np.array([speed(option) for option in OPTIONS])
    smoothed = np.log(expected(OPTIONS, noise) / truth)
    assert smoothed.std() < 0.8 * np.log(noise).std()


def test_closed_forms_carry_where_nothing_was_tried() -> None:
    tried = [option for option in OPTIONS if option.sizes == (2, 1)]
    estimates = {option.key: speed(option) / 2 for option in OPTIONS}
    surface = Surface([outcome(option, speed(option)) for option in tried], [1.0] * len(tried), GOAL, estimates)
    found = [ranked.tokens_per_s for ranked in surface.expected(OPTIONS)]
    assert found == pytest.approx([speed(option) for option in OPTIONS], rel=1e-6)


def test_longer_simulations_count_for_more() -> None:
    option = OPTIONS[0]
    estimates = {option.key: 100.0 for option in OPTIONS}
    both = [outcome(option, 100.0), outcome(OPTIONS[1], 200.0)]
    balanced, tipped = (
        Surface(both, weights, GOAL, estimates).expected([OPTIONS[2]])[0].tokens_per_s
        for weights in ([1.0, 1.0], [1.0, 9.0])
    )
    assert tipped > balanced
