"""What lies in the current folder is not run by the processes that commands and programs start there."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from tests.builders import machine_profile
from tests.server.running import write_plan
from tools.iid_trace import synthesise_trace

pytestmark = pytest.mark.extra("engine")

ROOT = Path(__file__).resolve().parents[1]
OURS = ("torch", "numpy", "zmq", "joblib", "socket", "queue", "random", "selectors", "pickle", "signal", "subprocess")
PYTHONS = ("types", "token", "threading", "tempfile", "collections", "warnings")  # loaded by `python -m` itself


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder in which every module that is run leaves a mark, and cannot be used."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in (*OURS, *PYTHONS):
        mark = f"open({str(tmp_path / 'marks')!r}, 'a').write({name + ' '!r})\n"
        (folder / f"{name}.py").write_text(f"{mark}raise SystemExit('planted')\n")
    return folder


def marks(planted: Path) -> str:
    path = planted.parent / "marks"
    return path.read_text() if path.exists() else ""


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=300)


def script(folder: Path, text: str) -> tuple[str, str]:
    """A program in a folder of its own, which is where Python looks for modules."""
    path = folder / "bin" / "program"
    path.parent.mkdir()
    path.write_text(text)
    return sys.executable, str(path)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, with the profile and the trace of another one."""
    path = write_plan(tmp_path_factory.mktemp("pair"))
    made = Plan.load(path)
    profile = machine_profile(num_devices=1, cost_ratio=15.0)
    pair = {"device": "cpu", "target": made.target, "draft": made.draft}
    profile.model_copy(update=pair).save(path.parent / "profile.json")
    trace = synthesise_trace((0.7, 0.12), prompt_lengths=(12,), num_tokens=32, seed=1)
    replace(trace, target=made.target, draft=made.draft).save(path.parent / "trace.npz")
    return path


@pytest.fixture(params=["run", "plan"])
def arguments(request: pytest.FixtureRequest, plan_file: Path) -> tuple[str, ...]:
    """A run, which has a fork server, or a search in two processes."""
    if request.param == "run":
        return ("run", "--plan", str(plan_file), "--prompt", "ab", "--max-new-tokens", "4")
    folder, made = plan_file.parent, Plan.load(plan_file)
    pair = ("--target", made.target.model, "--draft", made.draft.model)
    files = ("--profile", f"{folder}/profile.json", "--trace", f"{folder}/trace.npz", "--out", f"{folder}/made.json")
    return ("plan", *pair, *files, "--devices", "1", "--policy", "serial_chain", "--jobs", "2")


def test_an_installed_command(planted: Path, arguments: tuple[str, ...]) -> None:
    program = script(planted.parent, "import sys\nfrom swiftspec.__main__ import program\nsys.exit(program())\n")
    done = run_in(planted, *program, *arguments)
    assert (done.returncode, marks(planted)) == (0, ""), done.stderr


def test_python_m(planted: Path, arguments: tuple[str, ...]) -> None:
    for name in PYTHONS:
        (planted / f"{name}.py").unlink()
    done = run_in(planted, sys.executable, "-m", "swiftspec", *arguments)
    assert (done.returncode, marks(planted)) == (0, ""), done.stderr


LIBRARY = """
import multiprocessing, os, sys
import joblib
from swiftspec import Engine
from swiftspec.planner.search.backends import run_parallel
from swiftspec.profiler.helper_processes import answer_of_ranks

def rank(number, answers):
    if number == 0:
        answers.put(4)

if __name__ == "__main__":
    before = dict(os.environ)
    assert list(run_parallel((joblib.delayed(abs)(-number) for number in range(2)), 2)) == [0, 1]
    assert answer_of_ranks("nothing", rank, (), num_ranks=2) == 4
    with Engine(sys.argv[1]) as engine:
        assert list(engine.generate("ab", max_new_tokens=4))
    assert dict(os.environ) == before
"""


def test_a_program_that_uses_the_library(planted: Path, plan_file: Path) -> None:
    done = run_in(planted, *script(planted.parent, LIBRARY), str(plan_file))
    assert (done.returncode, marks(planted)) == (0, ""), done.stderr


STARTS = """
import subprocess
from swiftspec.interpreters import interpreter_command
subprocess.run(interpreter_command("swiftspec.shown", "1", "2"), check=True)
"""
SHOWN = """
import sys
def main():
    import beside
    print(__file__, sys.argv[1:], beside.__file__)
"""


def test_an_interpreter_has_the_package_of_its_starter_and_what_lies_beside_it(tmp_path: Path) -> None:
    """A copy, while another one may be installed: in the current folder, or in that of the program."""
    copy = tmp_path / "copy"
    (copy / "swiftspec").mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "version.py", "interpreters.py"):
        shutil.copy(ROOT / "swiftspec" / name, copy / "swiftspec")
    (copy / "swiftspec" / "shown.py").write_text(SHOWN)
    (copy / "beside.py").touch()
    (copy / "program.py").write_text(STARTS)
    for folder, command in ((copy, ("-m", "program")), (tmp_path, (str(copy / "program.py"),))):
        done = run_in(folder, sys.executable, *command)
        assert done.stdout.split() == [f"{copy}/swiftspec/shown.py", "['1',", "'2']", f"{copy}/beside.py"], done.stderr


def test_python_m_in_a_folder_that_was_removed_works(tmp_path: Path) -> None:
    command = f"cd {tmp_path} && rmdir {tmp_path} && exec {sys.executable} -m swiftspec --version"
    assert run_in(ROOT, "sh", "-c", command).returncode == 0


def test_a_rank_that_fails_is_reported(tmp_path: Path) -> None:
    text = """
from swiftspec.profiler.helper_processes import answer_of_ranks
def rank(number, answers):
    if number == 1:
        raise ValueError("no such thing")
    answers.get()  # waits for ever
if __name__ == "__main__":
    answer_of_ranks("measuring", rank, (), num_ranks=2)
"""
    done = run_in(tmp_path, *script(tmp_path, text))
    assert "RuntimeError: measuring failed: rank 1: Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("ValueError: no such thing")
