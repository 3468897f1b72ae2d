"""A draft on a device of its own for many requests: SGLang's table."""

import pytest

from swiftspec.studies.backtest.decoupled import decoupled_rows
from swiftspec.studies.backtest.published import read_facts
from tests.studies.backtest.conftest import Found


@pytest.fixture(scope="module")
def decoupled() -> Found:
    return decoupled_rows()


def test_every_published_speed_is_predicted_within_15_percent_without_it(decoupled: Found) -> None:
    """But the last: 64 requests with their drafts are 384 rows, of which the published engine makes less."""
    rows, _ = decoupled
    assert len(rows) == 2 * len(read_facts("decoupled")["requests"])
    errors = [row.error_leave_one_out for row in rows if row.error_leave_one_out is not None]
    assert all(abs(error) < 0.15 for error in errors[:-1])
    assert abs(errors[-1]) < 0.25


def test_the_gain_falls_with_the_batch_as_published(decoupled: Found) -> None:
    speeds = {row.name: row for row in decoupled[0]}
    gains = {
        field: [
            getattr(speeds[name.replace("plain", "decoupled")], field) / getattr(row, field)
            for name, row in speeds.items()
            if "plain" in name
        ]
        for field in ("published", "predicted")
    }
    assert gains["predicted"][:-1] == pytest.approx(gains["published"][:-1], rel=0.2)
    assert min(gains["predicted"]) == gains["predicted"][-1]


def test_the_decoupled_engine_saves_some_of_the_hosts_time(decoupled: Found) -> None:
    host_s, saved_s = (constant.value for constant in decoupled[1])
    assert 0 < saved_s < host_s
