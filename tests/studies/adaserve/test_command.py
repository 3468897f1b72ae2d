"""`swiftspec study adaserve` on the first twenty seconds of the experiment."""

from functools import partial

import pytest

from swiftspec.cli.app import main
from swiftspec.studies.adaserve.experiment import SYSTEMS, serve
from swiftspec.studies.backtest.published import read_facts

PEAKS = read_facts("adaserve")["figures"]["14"]["qwen2.5-32b"]
CALM = slice(0, 2)  # windows of ten seconds of the first minute, in which few requests come


def test_every_system_is_shown_and_a_check_that_does_not_hold_is_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("swiftspec.studies.adaserve.command.serve", partial(serve, windows=CALM))
    assert main(["study", "adaserve", "--at", "2.6"]) == 0  # at which nothing is checked
    said = capsys.readouterr().out
    assert [name for name in SYSTEMS if said.count(name) < 2] == []
    assert main(["study", "adaserve", "--at", "4.2"]) == 1
    assert "AdaServe is off by" in capsys.readouterr().out


def test_a_figure_without_goodput_has_a_table_of_what_is_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("swiftspec.studies.adaserve.command.serve", partial(serve, windows=CALM))
    assert main(["study", "adaserve", "--figure", "14", "--model", "qwen2.5-32b"]) == 0
    cells = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert {name: published for name, published, _ in (row for row in cells if row[0] in SYSTEMS)} == {
        name: str(value) for name, (value,) in PEAKS["attainment"].items()
    }
