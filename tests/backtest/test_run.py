from pathlib import Path

import pytest

from swiftspec.backtest.rows import Row, mean_error, median_error
from swiftspec.backtest.run import run
from swiftspec.backtest.serving import POINTS


def row(predicted: float, left_out: float | None) -> Row:
    return Row(
        name="", quantity="", published=1.0, predicted=predicted, error_leave_one_out=left_out, source="somewhere"
    )


ROWS = [row(1.1, 0.3), row(0.8, -0.4), row(1.0, None)]


def test_errors_are_taken_without_their_sign() -> None:
    assert median_error(ROWS, left_out=False) == pytest.approx(0.1)
    assert mean_error(ROWS, left_out=False) == pytest.approx(0.1)


def test_left_out_errors_replace_those_of_fits_that_saw_the_row() -> None:
    assert median_error(ROWS, left_out=True) == pytest.approx(0.3)
    assert mean_error(ROWS, left_out=True) == pytest.approx(0.7 / 3)


def test_points_of_a_file_are_the_only_section(tmp_path: Path) -> None:
    lines = POINTS.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([lines[0], *lines[1:4]]) + "\n")
    result = run(e2e=few, num_jobs=1, done=lambda done, total, what: None)
    (section,) = result.sections
    assert len(result.rows) == 3
    assert str(few) in section.title
    assert result.constants


def test_malformed_point_is_named_by_file_and_line(tmp_path: Path) -> None:
    lines = POINTS.read_text().splitlines()
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join([lines[0], lines[1].replace("h100_sxm", "h100_sxm,surplus")]) + "\n")
    with pytest.raises(ValueError, match=r"broken.csv.*2"):
        run(e2e=broken, num_jobs=1, done=lambda done, total, what: None)
