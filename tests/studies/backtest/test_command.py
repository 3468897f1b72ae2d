import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.studies.backtest.loads import POINTS, STAGES
from swiftspec.studies.backtest.rows import Backtest, Constant, Row, Section

Fails = Callable[..., str]


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A header and three serving points."""
    path = tmp_path / "few.csv"
    path.write_text("\n".join(POINTS.path.read_text().splitlines()[:4]) + "\n")
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Backtest:
    """Stands for all sections, which take minutes."""
    rows = tuple(
        Row(
            name=f"{model} bf16, vllm, 1 x h100-sxm, batch 8, 1024/128",
            quantity="TPOT, ms",
            published=8.0,
            predicted=8.4,
            error_leave_one_out=0.1,
            source="NVIDIA, tables, one",
        )
        for model in ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b")
    )
    constant = Constant(name="layer_s, vllm", value=2e-5, unit="s", fitted_on="3 loads of llama-3.1-8b")
    found = Backtest(
        sections=(Section(title="Serving points", rows=rows, constants=(constant,), skipped={"requests failed": 4}),)
    )
    monkeypatch.setattr("swiftspec.studies.backtest.run.run", lambda **_: found)
    return found


@pytest.mark.extra("plots")
def test_every_row_is_shown_and_saved_beside_what_was_published(
    small: Backtest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figure = tmp_path / "backtest.json", tmp_path / "backtest.svg"
    assert main(["study", "backtest", "--json", str(out), "--plot", str(figure)]) == 0
    content = json.loads(out.read_text())
    assert [set(row) for row in content["rows"]] == [
        {"name", "quantity", "published", "predicted", "error", "error_leave_one_out", "source"}
    ] * 3
    assert content["summary"]["all"]["rows"] == 3
    assert content["skipped"] == {"requests failed": 4}
    assert [constant["name"] for constant in content["constants"]] == ["layer_s, vllm"]
    assert figure.read_bytes().startswith(b"<?xml")
    said = " ".join(capsys.readouterr().out.split())
    assert all(word in said for row in small.rows for word in row.name.split())  # long names are wrapped
    assert "All: 3 rows, median error 5" in said
    assert "Not predicted: 4 loads, since requests failed" in said
    assert content["coverage"]["loads"] == {"rows": 3, "inside": 3}


@pytest.mark.extra("plots")
def test_loads_of_a_file_are_those_of_validate(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other, figure = tmp_path / "backtest.json", tmp_path / "validate.json", tmp_path / "backtest.svg"
    assert main(["study", "backtest", "--loads", str(few), "--json", str(out), "--plot", str(figure)]) == 0
    said = capsys.readouterr().out
    assert main(["validate", "--loads", str(few), "--json", str(other)]) == 0
    assert capsys.readouterr().out == said
    assert json.loads(out.read_text()) == json.loads(other.read_text())
    assert json.loads(out.read_text())["summary"]["errors"]["all"]["tpot_mean_ms"]["rows"] == 3
    assert figure.read_bytes().startswith(b"<?xml")


def test_an_engine_is_that_of_rows_that_name_none(tmp_path: Path) -> None:
    path, out = tmp_path / "stage.csv", tmp_path / "out.json"
    path.write_text("\n".join(STAGES.path.read_text().splitlines()[:2]) + "\n")
    assert main(["study", "backtest", "--loads", str(path), "--json", str(out)]) == 0
    assert list(json.loads(out.read_text())["summary"]["left_out"]) == ["engine is missing"]
    assert main(["study", "backtest", "--loads", str(path), "--engine", "vllm@0.15.1", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["summary"]["left_out"] == {}


def test_an_engine_without_loads_is_refused(fails: Fails) -> None:
    assert fails("study", "backtest", "--engine", "vllm") == "--engine is vllm; it is only for --loads"


def test_malformed_row_is_named_by_file_and_line(few: Path, fails: Fails) -> None:
    lines = few.read_text().splitlines()
    few.write_text("\n".join((*lines[:2], lines[2].replace(",1024,256,", ",1024,many,"), *lines[3:])) + "\n")
    sentence = fails("study", "backtest", "--loads", few)
    assert "few.csv, line 3: " in sentence
    assert "'many'" in sentence


def test_file_that_is_not_there_is_named(tmp_path: Path, fails: Fails) -> None:
    assert "nowhere.csv" in fails("study", "backtest", "--loads", tmp_path / "nowhere.csv")


def test_loads_are_not_overwritten(few: Path, fails: Fails) -> None:
    before = few.read_text()
    assert fails("study", "backtest", "--loads", few, "--json", few).startswith(f"--json is {few}, which is read as --")
    assert few.read_text() == before
