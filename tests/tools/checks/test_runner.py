"""The runner of checks: exit codes, printed verdicts, JSON, and mistakes in the command."""

import json
from pathlib import Path

import pytest

from tools.checks.__main__ import CHECKS, main


def test_a_check_that_holds_exits_with_0_and_writes_every_criterion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "criteria.json"
    assert main(["neighbours", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    document = json.loads(out.read_text())
    assert document["check"] == "neighbours"
    assert [criterion["held"] for criterion in document["criteria"]] == [True] * 3
    for criterion in document["criteria"]:
        assert f"held: {criterion['name']}: {criterion['found']:.4g}" in printed


def test_a_check_that_misses_exits_with_1_and_says_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.checks.neighbours._PUBLISHED_SPEED_UP", 5.0)
    assert main(["neighbours"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (missed,) = (line for line in lines if line.startswith("missed"))
    assert missed.startswith("missed: MagicDec's largest speed-up, from the published one: ")
    assert missed.endswith("%, at most 5 %")
    assert sum(line.startswith("held") for line in lines) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["neighbors"], "the check is 'neighbors'; expected one of atts, controls, "),
        (["load", "--plan", "p", "--prompts", "q"], "the following arguments are required: --work"),
        (["serving", "--only", "crowds"], "--only is 'crowds'; expected one of overload, slow, leaving, faults"),
        (["neighbours", "--plan", "p"], "unrecognized arguments: --plan p"),
        (["tenants", "--tenants", "one"], "--tenants is 'one'; expected two folders"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.extra("engine")
def test_a_mistake_in_the_command_is_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_the_list_has_a_line_for_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-len(CHECKS) :]] == list(CHECKS)
    assert all(line.endswith(".") for line in lines[-len(CHECKS) :])


@pytest.mark.extra("engine")
@pytest.mark.parametrize("name", CHECKS)
def test_every_check_says_what_it_demands_and_what_it_needs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "Criteri" in said
    assert "--json" in said
