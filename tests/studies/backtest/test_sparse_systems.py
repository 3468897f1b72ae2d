"""Published speeds of sparse targets, and what they show."""

from swiftspec.studies.backtest.rows import Row


def test_gains_of_drafts_on_sparse_targets(sparse_systems: list[Row]) -> None:
    rows = sparse_systems
    assert len(rows) == 10
    assert all(row.error_leave_one_out == row.error for row in rows)
    speeds = {row.name: row for row in rows}
    # With the speed of plain decoding known, a tree's gain follows from the cost of its rows.
    for dataset in ("HumanEval", "MT-Bench"):
        assert abs(speeds[f"minimax-m2.5 fp8, 4 h200, eagle3 tree of 8, {dataset}"].error) < 0.1
    assert abs(_named(rows, "deepseek-v3.2", "mtp chain of 1").error) < 0.15
    assert abs(_named(rows, "a mixture", "4 rows against 1").error) < 0.1


def test_what_is_missed_is_shown(sparse_systems: list[Row]) -> None:
    """A fork's plain decoding and its many requests, and a device and division that no table has."""
    rows = sparse_systems
    assert _named(rows, "minimax", "autoregressive").error > 0.5
    assert _named(rows, "minimax", "32 requests").error > 0.5
    assert _named(rows, "kimi-k3", "autoregressive").error < -0.3


def _named(rows: list[Row], *words: str) -> Row:
    (found,) = [row for row in rows if all(word in row.name for word in words)]
    return found
