import pytest

from swiftspec.studies.backtest.rows import Backtest, Row, Section, mean_error, median_error


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


def test_loads_that_are_not_predicted_are_counted_over_all_sections() -> None:
    counts: list[dict[str, int]] = [{"requests failed": 4}, {}, {"requests failed": 1, "devices are unknown": 2}]
    sections = tuple(Section(title=str(number), rows=(), skipped=found) for number, found in enumerate(counts))
    assert Backtest(sections=sections).skipped == {"requests failed": 5, "devices are unknown": 2}
