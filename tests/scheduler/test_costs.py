"""Costs of rounds that take longer than predicted."""

import random
from statistics import median

import pytest

from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.scheduler.asks import Ask
from swiftspec.scheduler.controller import Controller
from swiftspec.scheduler.controls.named import Goodput
from swiftspec.scheduler.costs import MeasuredCosts
from swiftspec.timing.step_costs import ForwardCost, StepCosts

ACCEPTANCE, LONGEST = 0.75, 6


def costs(row_s: float) -> StepCosts:
    """Seconds of rounds whose rows cost so much each."""
    verify = ForwardCost(rows=(1, 64), seconds=(1.0, 1.0 + 63 * row_s))
    return StepCosts(verify=verify, draft=ForwardCost(rows=(1,), seconds=(0.05,)), num_levels=LONGEST)


CHEAP, DEAR = costs(0.01), costs(0.10)


def goodput(true: StepCosts, num_requests: int, length: int) -> float:
    """Tokens per second with a draft length."""
    tokens = num_requests * sum(ACCEPTANCE**level for level in range(length + 1))
    drafting_s = sum(true.level_s(level, num_requests) for level in range(1, length + 1))
    return tokens / (drafting_s + true.verify_s(num_requests, num_requests * (1 + length)))


def best_length(true: StepCosts, num_requests: int) -> int:
    """Draft length with the most tokens per second."""
    return max(range(LONGEST + 1), key=lambda length: goodput(true, num_requests, length))


def lengths_served(predicted: StepCosts, true: StepCosts, *, num_requests: int, num_rounds: int) -> list[int]:
    """Draft lengths that `goodput` chooses in rounds that take as long as `true` says, those served whole included."""
    rng = random.Random(0)
    controller = Controller(Goodput(), predicted, max_rows=64)
    for request in range(num_requests):
        controller.add(request, tpot_s=None)
    lengths, now_s = [], 0.0
    for _ in range(num_rounds):
        length = next(
            (level - 1 for level in range(1, LONGEST + 1) if not controller.may_draft(0, level, now_s)), LONGEST
        )
        lengths.append(length)
        now_s += sum(true.level_s(level, num_requests) for level in range(1, length + 1))
        rows = 1 + length
        asks = [Ask(request, Role.TARGET, ForwardKind.EXACT, rows, is_elastic=True) for request in range(num_requests)]
        controller.note_step([(ask, rows) for ask in asks], now_s)
        now_s += true.verify_s(num_requests, num_requests * (1 + length))
        for request in range(num_requests):
            accepted = next((level for level in range(length) if rng.random() > ACCEPTANCE), length)
            controller.note_commit(request, accepted + 1, now_s)
            controller.note_accepted(request, range(accepted + 1))
    return lengths


@pytest.mark.parametrize(("predicted", "true"), [(CHEAP, DEAR), (DEAR, CHEAP)])
@pytest.mark.parametrize("num_requests", [3, 6])
def test_a_wrong_profile_is_made_up_for(predicted: StepCosts, true: StepCosts, num_requests: int) -> None:
    best = goodput(true, num_requests, best_length(true, num_requests))
    believed = best_length(predicted, num_requests)
    assert goodput(true, num_requests, believed) < 0.95 * best, "the profile is misleading"
    last = lengths_served(predicted, true, num_requests=num_requests, num_rounds=800)[-200:]
    assert median(goodput(true, num_requests, length) for length in last) > 0.95 * best


def test_rounds_that_take_as_long_as_predicted_change_nothing() -> None:
    measured = MeasuredCosts(CHEAP)
    for rows in (2, 6, 14, 6, 2):
        measured.note(2, rows, others_s=0.1, seconds=0.1 + CHEAP.verify_s(2, rows))
    assert measured.verify_s(2, 10) == pytest.approx(CHEAP.verify_s(2, 10))


def test_a_round_that_was_held_up_does_not_count() -> None:
    measured = MeasuredCosts(CHEAP)
    measured.note(1, 4, others_s=0.0, seconds=4.0)
    assert measured.verify_s(1, 4) == CHEAP.verify_s(1, 4)
