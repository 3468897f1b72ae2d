"""`plan --device` for models given only by a config.json."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.planner.planned_model import planned_pair
from swiftspec.timing.latency import Provenance
from tests.cli.published_configs import write_config

pytestmark = pytest.mark.usefixtures("little_text")

Fails = Callable[..., str]


PAIRS = [
    ("llama-3.1-405b", "llama-3.1-8b", "llama-3.3-70b with llama-3.2-1b"),
    ("llama-3.1-405b", "llama-3.2-1b", "llama-3.3-70b with llama-3.2-1b"),
    ("llama-2-70b", "tinyllama-1.1b", "llama-2-70b with llama-2-7b"),
    ("codellama-34b", "tinyllama-1.1b", "llama-2-70b with llama-2-7b"),
    ("codellama-34b", "llama-2-7b", "llama-2-70b with llama-2-7b"),
    ("smollm2-1.7b", "smollm2-135m", "llama-2-7b with llama-68m"),
    ("mistral-large", "mistral-7b", "qwen2-72b with qwen2-1.5b"),
]


@pytest.mark.parametrize(("target", "draft", "stand_in"), PAIRS)
def test_a_pair_of_directories_is_planned(tmp_path: Path, target: str, draft: str, stand_in: str) -> None:
    models = ["--target", write_config(tmp_path, target), "--draft", write_config(tmp_path, draft)]
    machine = ["--device", "h200-sxm", "--devices", "4", "--dtype", "fp8", "--prompt-tokens", "32", "--jobs", "1"]
    out = tmp_path / "plan.json"
    assert main(["plan", *models, *machine, "--policy", "serial_chain", "--out", str(out)]) == 0
    made = Plan.load(out)
    assert made.chosen.prediction.metrics.figures.tokens_per_s > 0
    assert made.acceptance is not None
    assert made.acceptance.provenance is Provenance.ASSUMED
    assert f"with {tmp_path / draft} is published; {stand_in} stands in" in made.acceptance.basis


def test_one_narrow_data_set_is_warned_of_before_acceptance_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    pair = ["--target", "llama-3.3-70b", "--draft", "llama-3.2-1b", "--device", "h200-sxm", "--devices", "1"]
    more = ["--dtype", "fp8", "--prompt-tokens", "32", "--policy", "serial_chain", "--jobs", "1", "--out", str(out)]
    assert main(["plan", *pair, *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if "cceptance is" in line or "Acceptance (" in line)
    assert lines[first].startswith("Warning: acceptance is known only on InstructCoder (code editing, ")
    assert json.loads(out.read_text())["acceptance"]["warning"].startswith("known only on InstructCoder")


def test_a_directory_may_have_a_named_draft(tmp_path: Path) -> None:
    target, draft = planned_pair(write_config(tmp_path, "llama-3.1-405b"), "llama-3.2-1b")
    assert (target.spec.num_layers, draft.name) == (126, "llama-3.2-1b")


def test_the_vocabularies_are_those_of_the_two_models_themselves(fails: Fails, tmp_path: Path) -> None:
    target, draft = write_config(tmp_path, "mistral-large"), write_config(tmp_path, "tinyllama-1.1b")
    where = ["--device", "h200-sxm", "--devices", 4, "--out", tmp_path / "plan.json"]
    sentence = fails("plan", "--target", target, "--draft", draft, *where)
    assert sentence == f"--draft is {draft} with a vocabulary of 32000 tokens; that of {target} has 32768"
