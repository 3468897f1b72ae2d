import numpy as np
import pytest

from swiftspec.acceptance.model import PRIOR
from swiftspec.studies.backtest.table7 import (
    Reading,
    predicted_lengths,
    predicted_tails,
    published_lengths,
    serial_fits,
)

# The reading that is argued for comes first; the errors of others are bounded, not hidden.
READINGS = {
    "as argued": Reading(),
    "one forward after a miss": Reading(miss_expansions=1),
    "bonus excluded": Reading(bonus=False),
}


def mean_error(reading: Reading) -> float:
    published, predicted = published_lengths("asynchronous"), predicted_lengths(reading)
    return float(np.mean([abs(predicted[dataset] / length - 1) for dataset, length in published.items()]))


def test_six_data_sets_are_published_for_both_arms() -> None:
    serial, parallel = published_lengths("serial"), published_lengths("asynchronous")
    assert len(serial) == 6
    assert all(parallel[dataset] < serial[dataset] for dataset in serial)


def test_serial_lengths_predict_the_asynchronous_ones_within_five_percent() -> None:
    assert mean_error(READINGS["as argued"]) <= 0.05


@pytest.mark.parametrize("name", [name for name in READINGS if name != "as argued"])
def test_other_readings_predict_them_too(name: str) -> None:
    assert mean_error(READINGS[name]) <= 0.08


def test_fits_give_the_serial_arm_its_lengths() -> None:
    reading, published = Reading(), published_lengths("serial")
    for dataset, fit in serial_fits(reading).items():
        length = reading.length(reading.serial, fit.acceptance_model)
        assert length == pytest.approx(published[dataset], rel=0.02)


def test_no_round_accepts_more_draft_tokens_than_it_has_expansions() -> None:
    """Why GSM8K's length of 4.2, bonus included or not, cannot come from 3 expansions."""
    perfect = PRIOR.model_copy(update={"mean_logit": 25.0})
    reading = Reading(expansions=3, bonus=False)
    assert reading.length(reading.serial, perfect) == pytest.approx(3, abs=0.01)


def test_slow_tails_are_too_slow_by_a_quarter_and_alike_in_both_arms() -> None:
    """Published are 0.73 of the mean for both, over 480 prompts; texts of the prior differ more than theirs."""
    tails = predicted_tails(Reading())
    assert all(-0.3 < tail / 0.726 - 1 < -0.2 for tail in tails.values())
    assert abs(tails["parallel"] - tails["serial"]) < 0.03
