"""What a user sees when a machine fails in the middle of `run`: real processes, memory and disks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.documents import ModelRef
from tests.cli.samples import plan as sample_plan
from tests.engine.conftest import two_cores
from tests.engine.processes import gone_within, workers

pytestmark = pytest.mark.alone

RUN = (sys.executable, "-m", "swiftspec.cli", "run")
LONG = ("--prompt", "def add(a, b):", "--max-new-tokens", "200")
PlanMaker = Callable[[str | None], Path]


@pytest.fixture
def make_plan(models: tuple[Path, Path], tmp_path: Path) -> PlanMaker:
    """A plan of the pair, its target inflated."""

    def make(inflate: str | None) -> Path:
        target, draft = (ModelRef(model=str(model), dtype="float32") for model in models)
        made = sample_plan(target=target.model_copy(update={"inflate": inflate}), draft=draft)
        made.save(tmp_path / "plan.json")
        return tmp_path / "plan.json"

    return make


@two_cores
def test_a_target_that_dies_leaves_its_text_and_exit_code_3(make_plan: PlanMaker, tmp_path: Path) -> None:
    plan = make_plan("layers=32,hidden=192")
    arguments = [*RUN, "--plan", str(plan), *LONG, "--json", str(tmp_path / "out.json")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        first = run.stdout.read(1)
        target, *others = workers(run.pid)
        os.kill(target, signal.SIGKILL)
        text, errors = first + run.stdout.read(), run.stderr.read()
    assert run.returncode == 3
    assert "swiftspec: error: the target process ended unexpectedly: it was killed (signal 9)" in errors
    assert "Traceback" not in errors
    (kept,) = json.loads((tmp_path / "out.json").read_text())["prompts"]
    assert kept["text"] == text.removesuffix("\n")
    assert 0 < len(kept["output_token_ids"]) < 200
    assert gone_within([target, *others], 2.0)


@two_cores
def test_a_draft_that_dies_is_a_note_and_the_text_is_whole(make_plan: PlanMaker) -> None:
    plan = make_plan("layers=32,hidden=192")
    arguments = [*RUN, "--plan", str(plan), *LONG]
    undisturbed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        first = run.stdout.read(1)
        _, draft = workers(run.pid)
        os.kill(draft, signal.SIGKILL)
        text, errors = first + run.stdout.read(), run.stderr.read()
    assert (run.returncode, text) == (0, undisturbed)
    assert "the target went on without its draft 1 time" in errors


def test_models_that_do_not_fit_into_memory_are_one_sentence(make_plan: PlanMaker) -> None:
    """Terabytes: the allocation itself is refused, whatever the machine."""
    plan = make_plan("hidden=4194304,intermediate=4194304")
    arguments = [*RUN, "--plan", str(plan), "--policy", "autoregressive", "--prompt", "x"]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "GB of memory; this machine has" in run.stderr
    assert "hidden=4194304" in run.stderr


def can_mount() -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="a full disk needs the right to mount one")
def test_a_full_disk_costs_one_file_and_the_text_is_there(make_plan: PlanMaker, tmp_path: Path) -> None:
    plan, disk, kept = make_plan(None), tmp_path / "disk", tmp_path / "kept.json"
    disk.mkdir()
    script = f"mount -t tmpfs -o size=8k tmpfs {disk} && exec {' '.join(RUN)} "
    script += f"--plan {plan} --policy serial_chain --prompt import --max-new-tokens 200 "
    script += f"--timeline {disk}/timeline.json --json {kept}"
    run = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert f"{disk}/timeline.json: cannot be written (No space left on device)" in run.stderr
    assert "Traceback" not in run.stderr
    (prompt,) = json.loads(kept.read_text())["prompts"]
    assert prompt["text"] == run.stdout.removesuffix("\n")
