"""AMUSD's published times, from plain and serial decoding."""

import pytest

from swiftspec.studies.backtest.amusd import amusd_rows
from swiftspec.studies.backtest.rows import Row


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.name.removeprefix("llama-3.1-8b + llama-3.2-1b, "): row for row in amusd_rows()}


def test_amusds_times_are_predicted(rows: dict[str, Row]) -> None:
    assert max(abs(rows[f"{dataset}, amusd"].error) for dataset in ("HumanEval", "RefactorChat")) < 0.06


def test_serial_rounds_take_longer_than_their_forwards(rows: dict[str, Row]) -> None:
    """The paper's serial times have something beside the two forwards that its traces have."""
    errors = [rows[f"{dataset}, serial_chain"].error for dataset in ("HumanEval", "RefactorChat")]
    assert all(-0.15 < error < -0.05 for error in errors)
