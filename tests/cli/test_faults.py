"""Output for the user when a machine fails in the middle of `run`: real processes, memory and disks."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from tests.cli.samples import plan as sample_plan
from tests.engine.conftest import two_cores
from tests.engine.pairs import references
from tests.engine.processes import children, engine_processes, gone_within, workers

pytestmark = pytest.mark.extra("engine")

RUN = (sys.executable, "-m", "swiftspec", "run")
LONG = ("--prompt", "def add(a, b):", "--max-new-tokens", "200")
PlanMaker = Callable[[str | None], Path]


@pytest.fixture
def make_plan(models: tuple[Path, Path], tmp_path: Path) -> PlanMaker:
    """A plan of the pair, its target inflated."""

    def make(inflate: str | None) -> Path:
        target, draft = references(models, inflate=inflate)
        sample_plan(target=target, draft=draft).save(tmp_path / "plan.json")
        return tmp_path / "plan.json"

    return make


@two_cores
def test_a_target_that_dies_leaves_its_text_and_exit_code_3(slow_plan: Path, tmp_path: Path) -> None:
    arguments = [*RUN, "--plan", str(slow_plan), *LONG, "--json", str(tmp_path / "out.json")]
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
    assert gone_within([target, *others], 30.0)


@two_cores
def test_a_draft_that_dies_is_a_note_and_the_text_is_whole(slow_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*RUN, "--plan", str(slow_plan), *LONG[:2], "--max-new-tokens", "40"]
    assert main(arguments[3:]) == 0
    undisturbed = capsys.readouterr().out
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        first = run.stdout.read(1)
        _, draft = workers(run.pid)
        os.kill(draft, signal.SIGKILL)
        text, errors = first + run.stdout.read(), run.stderr.read()
    assert (run.returncode, text) == (0, undisturbed)
    # Once because it died; a busy machine may add a wait for the new one that was too long.
    assert re.search("the target continued without its draft [1-9]", errors)


@two_cores
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_signals_end_a_run_with_its_files_and_their_exit_code(
    slow_plan: Path, tmp_path: Path, short_folder: Path, number: signal.Signals, code: int
) -> None:
    """Sent to all processes, as terminals and services do, and twice, as `timeout` does."""
    arguments = [*RUN, "--plan", str(slow_plan), *LONG, "--json", str(tmp_path / "out.json")]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(short_folder)},
        start_new_session=True,
    ) as run:
        assert run.stdout
        assert run.stderr
        first = run.stdout.read(1)
        pids = engine_processes(run.pid)
        for _ in range(2):
            os.killpg(run.pid, number)
        text, errors = first + run.stdout.read(), run.stderr.read()
    assert run.returncode == code
    assert "Traceback" not in errors
    assert errors.endswith("swiftspec: interrupted\n")
    (kept,) = json.loads((tmp_path / "out.json").read_text())["prompts"]
    assert kept["text"] == text.removesuffix("\n")
    assert gone_within(pids, 30.0)
    assert list(short_folder.iterdir()) == []


@two_cores
def test_ctrl_c_ends_the_wait_for_a_frozen_target(slow_plan: Path) -> None:
    arguments = [*RUN, "--plan", str(slow_plan), *LONG]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.read(1)
        target, *others = workers(run.pid)
        os.kill(target, signal.SIGSTOP)
        # A busy machine may say first that models are still awaited.
        assert any(f"process {target} is stopped" in line for line in iter(run.stderr.readline, ""))
        for _ in range(3):
            os.killpg(run.pid, signal.SIGINT)
            time.sleep(0.3)
        errors = run.stderr.read()
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert gone_within([target, *others], 30.0)


@pytest.mark.parametrize("after_s", [0.1, 0.3, 0.6, 1.0])
def test_interrupts_at_the_very_start_have_their_exit_code(make_plan: PlanMaker, after_s: float) -> None:
    arguments = [sys.executable, "-m", "swiftspec", "run", "--plan", str(make_plan(None)), *LONG]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr
        until_handled(run.pid)
        time.sleep(after_s)
        for _ in range(2):
            run.send_signal(signal.SIGINT)
            time.sleep(0.02)
        errors = run.stderr.read()
    assert run.returncode == 130
    assert "Traceback" not in errors


def until_handled(pid: int) -> None:
    """Until the process looks after SIGTERM: before, it is the interpreter that starts."""
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        (caught,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)
    raise AssertionError("it never does")


@two_cores
def test_a_long_tmpdir_works(make_plan: PlanMaker, tmp_path: Path) -> None:
    long = tmp_path / ("a-long-name-" * 10)
    long.mkdir()
    assert len(str(long)) > 107
    arguments = [*RUN, "--plan", str(make_plan(None)), "--prompt", "import", "--max-new-tokens", "8"]
    environment = os.environ | {"TMPDIR": str(long)}
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    assert "draft process" in run.stderr


def test_an_interrupted_plan_says_one_line_and_leaves_no_process(tmp_path: Path) -> None:
    """Also its helper, to which a terminal sends the signal, too."""
    arguments = [sys.executable, "-m", "swiftspec", "plan", "--target", "llama-3-70b", "--draft", "llama-3.2-1b"]
    arguments += ["--device", "h100-sxm", "--devices", "8", "--jobs", "2", "--out", str(tmp_path / "plan.json")]
    pipe = subprocess.PIPE
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as run:
            deadline_s = time.monotonic() + 60.0
            while not (pids := children(run.pid)) and time.monotonic() < deadline_s:
                time.sleep(0.002)
            os.killpg(run.pid, number)
            _, errors = run.communicate()
        assert (run.returncode, errors.splitlines()[-1]) == (code, "swiftspec: interrupted")
        assert "Traceback" not in errors
        assert "leaked" not in errors
        assert gone_within(pids, 30.0)


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
