import math
import random

import pytest

from swiftspec.studies.atts.document import AttsOptions
from swiftspec.studies.atts.selection import Barrier, ByThreshold, Selections


def test_without_a_barrier_everyone_goes_on_at_once() -> None:
    selection = ByThreshold(2.0)
    assert selection.select(3, 2.0) == {3: False}
    assert selection.select(1, 2.1) == {1: True}
    assert selection.next_turn(1) == {1: None}
    assert selection.leave(3) == {}


def test_the_highest_scores_of_a_turn_are_taken_over_once_all_are_there() -> None:
    barrier = Barrier(5, 0.4)
    for sample, score in enumerate((1.0, 4.0, 2.0, 3.0)):
        assert barrier.select(sample, score) == {}
    assert barrier.select(4, 0.5) == {0: False, 1: True, 2: False, 3: True, 4: False}
    for sample in range(4):
        assert barrier.next_turn(sample) == {}
    assert barrier.next_turn(4) == dict.fromkeys(range(5))


def test_whoever_leaves_is_not_waited_for() -> None:
    barrier = Barrier(3, 0.5)
    assert barrier.select(0, 1.0) == {}
    assert barrier.select(2, 2.0) == {}
    assert barrier.leave(1) == {0: False, 2: True}
    assert barrier.next_turn(2) == {}
    assert barrier.leave(0) == {2: None}
    assert barrier.select(2, 1.0) == {2: True}  # 1.5 of three, of which one was taken over
    assert barrier.leave(2) == {}


@pytest.mark.parametrize("seed", range(20))
def test_a_barrier_keeps_the_budget_to_half_a_sample(seed: int) -> None:
    rng = random.Random(seed)
    budget = rng.choice((0.0, 0.1, 0.4, 0.5, 0.9, 1.0))
    running = list(range(rng.randrange(1, 17)))
    barrier, num_scored, num_taken = Barrier(len(running), budget), 0, 0
    while running:
        answers: dict[int, bool | None] = {}
        scores = {sample: rng.random() for sample in running}
        for sample, score in scores.items():
            assert not answers
            answers = dict(barrier.select(sample, score))
        num_scored, num_taken = num_scored + len(running), num_taken + sum(map(bool, answers.values()))
        assert abs(num_taken - budget * num_scored) <= 0.5
        taken = [scores[sample] for sample in running if answers[sample]]
        assert min(taken, default=math.inf) > max((s for n, s in scores.items() if not answers[n]), default=-math.inf)
        for sample in list(running):
            if rng.random() < 0.3:
                running.remove(sample)
                barrier.leave(sample)
            else:
                barrier.next_turn(sample)


def test_thresholds_are_of_all_questions_or_of_each() -> None:
    calibration = {"a": [1.0, 2.0, 3.0], "b": [5.0, 6.0, 7.0, 8.0]}
    shared = Selections(AttsOptions(budget=0.5), calibration)
    assert shared.threshold == 5.0
    assert shared.of("unknown").select(0, 5.5) == {0: True}
    own = Selections(AttsOptions(budget=0.5, is_per_question=True), calibration)
    assert own.threshold is None
    assert own.of("a").select(0, 2.5) == {0: True}
    assert own.of("b").select(0, 6.5) == {0: False}
    with pytest.raises(ValueError, match="calibration has no scores of question c"):
        own.of("c")
    with pytest.raises(ValueError, match="calibration is missing"):
        Selections(AttsOptions(), {}).of("a")
    assert isinstance(Selections(AttsOptions(is_barrier=True), {}).of("a"), Barrier)
