from collections.abc import Sequence

import numpy as np
import pytest

from swiftspec.planner.search.decision import Resampling
from swiftspec.planner.search.evaluation import Outcome
from swiftspec.planner.search.option import Option
from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role

SPLIT = {Role.TARGET: (0,), Role.DRAFT: (1,)}
NUM_PROMPTS = 16
LUCK = np.random.default_rng(1).normal(0, 1, NUM_PROMPTS)


def outcome(policy: Policy, request_s: Sequence[float] | np.ndarray) -> Outcome:
    """Of 100 tokens a prompt, one seed."""
    groups = SPLIT if isinstance(policy, SwiftSpec) else {Role.TARGET: (0,)}
    seconds = np.array([request_s])
    option = Option(policy=policy, groups=groups)
    tokens = np.full(seconds.shape[1], 100)
    return Outcome(option=option, tokens=tokens, request_s=seconds, tpot_s=seconds / tokens, metrics=None, seconds={})


RESAMPLING = Resampling(seed=0)


def test_the_faster_wins_where_every_prompt_agrees() -> None:
    hard = 10 + 5 * np.abs(LUCK)  # prompts differ far more than the policies do: only pairs tell them apart
    slow, fast = outcome(SerialChain(), hard * 1.01), outcome(SwiftSpec(), hard)
    assert RESAMPLING.winner([slow, fast]) == (fast, [])


def test_the_simpler_wins_where_prompts_disagree_and_the_tie_is_told() -> None:
    simple, fast = outcome(SerialChain(), np.full(NUM_PROMPTS, 10.1)), outcome(SwiftSpec(), 10 + LUCK - LUCK.mean())
    assert fast.tokens_per_s > simple.tokens_per_s
    assert RESAMPLING.winner([fast, simple]) == (simple, [fast])


def test_more_than_two_percent_is_not_given_up_for_simplicity() -> None:
    simple, fast = outcome(SerialChain(), np.full(NUM_PROMPTS, 10.3)), outcome(SwiftSpec(), 10 + LUCK - LUCK.mean())
    assert RESAMPLING.winner([fast, simple]) == (fast, [])


def test_fewer_rows_win_among_equals() -> None:
    same = np.full(NUM_PROMPTS, 10.0)
    wide, narrow = outcome(SwiftSpec(verify_rows=16), same), outcome(SwiftSpec(verify_rows=8), same)
    assert RESAMPLING.winner([wide, narrow]) == (narrow, [wide])


def test_interval_holds_the_estimate_and_widens_with_the_spread() -> None:
    calm, wild = outcome(SwiftSpec(), 10 + 0.1 * LUCK), outcome(SwiftSpec(), 10 + LUCK)
    widths = []
    for subject in (calm, wild):
        low, high = RESAMPLING.interval(subject)
        assert low < subject.tokens_per_s < high
        widths.append(high - low)
    assert widths[1] > 5 * widths[0]


def test_interval_covers_the_true_speed_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        low, high = RESAMPLING.interval(outcome(SwiftSpec(), rng.normal(10, 1, NUM_PROMPTS)))
        covered += low <= 10 <= high
    assert 0.87 <= covered / 300 <= 0.99


def test_a_single_prompt_is_judged_by_its_seeds() -> None:
    option = Option(policy=SwiftSpec(), groups=SPLIT)
    seconds = np.array([[9.0], [10.0], [11.0]])
    subject = Outcome(
        option=option, tokens=np.array([100]), request_s=seconds, tpot_s=seconds / 100, metrics=None, seconds={}
    )
    assert subject.tokens_per_s == pytest.approx(10.0)
    low, high = RESAMPLING.interval(subject)
    assert low < 10 < high
