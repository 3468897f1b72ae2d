"""vLLM's adaptive verification: what nothing was fitted to, and the loads at which choices change."""

import pytest

from swiftspec.studies.backtest.adaptive_verification import (
    ADAPTIVE,
    LENGTHS,
    adaptive_verification_rows,
    crossing,
    fitted_server,
)
from swiftspec.studies.backtest.published import read_facts

FACTS = read_facts("adaptive_verification")
CLIENTS = FACTS["clients"]


def predicted(scheme: str) -> list[float]:
    """Tokens/s of the server at the published loads."""
    together = [
        all_users / user
        for all_users, user in zip(FACTS["tokens_per_s"][scheme], FACTS["tokens_per_s_per_user"][scheme], strict=True)
    ]
    return [requests * fitted_server().tokens_per_s_per_user(scheme, requests) for requests in together]


def test_lengths_that_were_left_out_are_predicted_and_the_adaptive_one_lacks_confidences_only() -> None:
    rows, _ = adaptive_verification_rows()
    errors = {row.name: row.error for row in rows}
    assert len(rows) == 4 * len(CLIENTS)
    assert all(abs(error) < 0.04 for name, error in errors.items() if ADAPTIVE not in name)
    # A confidence in each token is worth something; the control has none, and is never better than the published one.
    assert all(-0.08 < error < 0.01 for name, error in errors.items() if ADAPTIVE in name)


@pytest.mark.parametrize(("shorter", "longer"), [("1", "7"), ("1", "6")])
def test_short_drafts_become_better_at_the_published_load(shorter: str, longer: str) -> None:
    measured = crossing(FACTS["tokens_per_s"][shorter], FACTS["tokens_per_s"][longer])
    assert crossing(predicted(shorter), predicted(longer)) == pytest.approx(measured, rel=0.1)


def test_the_length_predicted_to_be_best_is_published_to_be_nearly_so() -> None:
    speeds = {length: predicted(length) for length in LENGTHS}
    for index, clients in enumerate(CLIENTS):
        measured = {length: FACTS["tokens_per_s"][length][index] for length in LENGTHS}
        chosen = max(speeds, key=lambda length: speeds[length][index])
        assert measured[chosen] > 0.98 * max(measured.values()), clients


def test_the_adaptive_choice_is_at_least_the_best_fixed_one_at_every_load() -> None:
    adaptive, fixed = predicted(ADAPTIVE), {length: predicted(length) for length in LENGTHS}
    for index in range(len(CLIENTS)):
        assert adaptive[index] > 0.97 * max(speeds[index] for speeds in fixed.values())


def test_places_of_crossings_are_interpolated_and_may_be_missing() -> None:
    assert crossing([1, 1, 1, 1, 1, 2], [2, 2, 2, 2, 2, 1]) == pytest.approx(CLIENTS[4] * 2**0.5)
    assert crossing([1] * 6, [2] * 6) is None
