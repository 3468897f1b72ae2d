import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.backtest.serving import POINTS
from swiftspec.cli.app import main

Fails = Callable[..., str]


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A header and three serving points."""
    path = tmp_path / "few.csv"
    path.write_text("\n".join(POINTS.read_text().splitlines()[:4]) + "\n")
    return path


def test_points_of_a_file_are_predicted_beside_what_was_measured(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "backtest.json", tmp_path / "backtest.svg"
    assert main(["backtest", "--e2e", str(few), "--json", str(out), "--plot", str(figure)]) == 0
    content = json.loads(out.read_text())
    assert [set(row) for row in content["rows"]] == [
        {"name", "quantity", "published", "predicted", "error", "error_leave_one_out", "source"}
    ] * 3
    assert content["summary"]["all"]["rows"] == 3
    assert all(constant["fitted_on"] for constant in content["constants"])
    assert figure.read_bytes().startswith(b"<?xml")
    said = capsys.readouterr().out
    assert all(word in said for row in content["rows"] for word in row["name"].split())  # long names are wrapped
    assert "All: 3 rows, median error" in said
    inside = content["coverage"]["all"]["inside"]
    assert content["coverage"] == {
        "level": 0.9,
        "all": {"rows": 3, "inside": inside},
        "forwards": {"rows": 3, "inside": inside},
    }
    assert f"of the published figures (forwards {inside} of 3)" in said


def test_malformed_row_is_named_by_file_and_line(few: Path, fails: Fails) -> None:
    few.write_text(few.read_text().replace(few.read_text().splitlines()[2], "h100_sxm,broken"))
    sentence = fails("backtest", "--e2e", few)
    assert "few.csv" in sentence
    assert "3" in sentence


def test_file_that_is_not_there_is_named(tmp_path: Path, fails: Fails) -> None:
    assert "nowhere.csv" in fails("backtest", "--e2e", tmp_path / "nowhere.csv")
