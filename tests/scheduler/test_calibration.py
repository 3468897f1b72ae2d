"""What is learnt of a draft that is surer than it is right, or less sure."""

import random
from math import exp, log

import pytest

from swiftspec.scheduler.calibration import Calibration


def learnt(power: float, *, least: float, num_rounds: int = 600) -> Calibration:
    """After chains of one to five rows, whose paths of probability p are accepted with p**power, if p is not less."""
    rng, calibration = random.Random(3), Calibration()
    for _ in range(num_rounds):
        probabilities, path = [], 1.0
        for _ in range(5):
            path *= rng.uniform(0.5, 1.0)
            if path >= least:
                probabilities.append(path)
        drawn = rng.random()
        accepted = [0, *(row for row, each in enumerate(probabilities, start=1) if drawn < each**power)]
        calibration.note([log(each) for each in probabilities], accepted)
    return calibration


def test_before_anything_is_verified_the_drafts_word_is_taken() -> None:
    assert Calibration().of([log(0.9), log(0.5), log(0.2)]) == pytest.approx((0.9, 0.5, 0.2))


@pytest.mark.parametrize("power", [0.4, 1.0, 1.8])
def test_a_draft_is_believed_as_far_as_it_was_right(power: float) -> None:
    """Also of paths that were too unlikely to be verified."""
    wanted = (0.8, 0.6, 0.4, 0.2)
    found = learnt(power, least=0.3).of([log(each) for each in wanted])
    assert found == pytest.approx([each**power for each in wanted], abs=0.08)


def test_estimates_never_rise() -> None:
    calibration = learnt(1.0, least=0.05, num_rounds=40)
    found = calibration.of([-0.1 * row for row in range(60)])
    assert list(found) == sorted(found, reverse=True)
    assert all(0 < each <= 1 for each in found)
    assert found[-1] == pytest.approx(exp(-5.9), abs=0.05)
