"""`swiftspec study atts`: simulated on a recorded plan, and refused in one sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.studies.atts.document import AttsRun
from tests.test_architecture import ROOT

PLAN = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/plan.json"
PLANS = ("--plan", str(PLAN), "--draft-plan", str(PLAN))
SMALL = ("--samples", "4", "--turns", "3", "--draft-tokens", "24", "--target-tokens", "24", "--lengths", "fixed:24")


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    texts = ("def add(a, b):\n", "import os\n\n\nclass Tree:\n    def __init__(self):\n")
    path.write_text("\n".join(json.dumps({"id": str(number), "prompt": text}) for number, text in enumerate(texts)))
    return path


def simulated(*arguments: str, out: Path) -> AttsRun:
    assert main(["study", "atts", "--simulate", *PLANS, *arguments, "--json", str(out)]) == 0
    return AttsRun.load(out)


@pytest.mark.extra("engine")
def test_a_simulation_is_printed_written_and_can_be_replayed(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = simulated("--questions", str(questions), *SMALL, out=tmp_path / "drawn.json")
    printed = capsys.readouterr().out
    assert "Simulated 2 questions, 4 samples each, without a barrier" in printed
    assert "turns taken over" in printed
    few, many = (question.prompt_tokens for question in drawn.questions)
    assert 5 < few < many
    assert drawn.figures.num_samples == 8
    assert 0 < drawn.figures.sample_s.mean <= drawn.figures.question_s.mean
    again = simulated("--replay", str(tmp_path / "drawn.json"), out=tmp_path / "again.json")
    assert again.questions == drawn.questions
    barrier = simulated("--replay", str(tmp_path / "drawn.json"), "--barrier", out=tmp_path / "barrier.json")
    assert [len(sample.turns) for question in barrier.questions for sample in question.samples] == [
        len(sample.turns) for question in drawn.questions for sample in question.samples
    ]
    assert barrier.figures.taken_over == pytest.approx(0.4, abs=0.1)
    assert barrier.threshold is None
    assert barrier.calibration == drawn.calibration


def test_the_page_and_the_help_name_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "atts", "--help"]) == 0
    printed = capsys.readouterr().out
    flags = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", printed, re.MULTILINE)) | {"--barrier"}
    page = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
    commands = [line for line in page.splitlines() if line.startswith("    swiftspec study atts ")]
    assert len(commands) > 3
    assert {flag for line in commands for flag in re.findall(r"--[a-z-]+", line)} <= flags


@pytest.mark.extra("engine")
def test_a_seed_gives_one_result(questions: Path, tmp_path: Path) -> None:
    one, same, another = (
        simulated("--questions", str(questions), *SMALL, "--seed", seed, out=tmp_path / "run.json").questions
        for seed in ("1", "1", "2")
    )
    assert one == same != another


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--questions is missing"),
        (["--questions", "Q"], "--plan, --url: neither is given"),
        (["--questions", "Q", "--plan", "P", "--url", "U"], "--plan, --url: both are given"),
        (["--questions", "Q", "--plan", "P", "--draft-plan", "P", "--replay", "R"], "R: cannot be read"),
        (
            ["--questions", "Q", "--plan", "P", "--draft-plan", "P", "--lengths", "fixed:3"],
            "--lengths is fixed:3; it is",
        ),
        (["--simulate", "--questions", "Q"], "--simulate needs --plan and --draft-plan"),
        (["--simulate", "--plan", "P", "--draft-plan", "P"], "--questions is missing"),
        (["--simulate", *PLANS, "--questions", "Q", "--lengths", "five"], "--lengths is 'five'"),
        (["--questions", "Q", "--budget", "2"], "--budget is '2'"),
        (["--questions", "Q", "--end-marker", "("], "--end-marker is '('"),
        (["--questions", "Q", "--url", "nowhere", "--draft-url", "http://127.0.0.1:1"], "--url is nowhere"),
        (["--questions", "/nowhere.jsonl", "--plan", "P", "--draft-plan", "P"], "/nowhere.jsonl: cannot be read"),
    ],
)
def test_misuse_is_one_sentence(
    fails: Callable[..., str], questions: Path, arguments: list[str], sentence: str
) -> None:
    given = [{"Q": str(questions)}.get(argument, argument) for argument in arguments]
    assert fails("study", "atts", *given).startswith(sentence)
