"""`make test` itself: its report of costs, and the order in which tests start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FOLDER, LONGEST, pytest_ignore_collect
from tests.run import ALONE, counted, dearest

BUSY = """
import subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < 0.6: pass"

def test_idle():
    time.sleep(0.1)

def test_busy():
    subprocess.run([sys.executable, "-c", BURN], check=True)
"""


def test_the_files_that_are_begun_first_are_there() -> None:
    assert [name for name in LONGEST if not (FOLDER / name).exists()] == []


def test_the_tests_that_cost_most_are_named_with_the_time_of_their_processes(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(BUSY)
    junit = tmp_path / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-p", "tests.cpu_times", f"--rootdir={tmp_path}", f"--junitxml={junit}"]
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run([*command, "test_two.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    totals, costs = counted(junit)
    assert totals["passed"] == len(costs) == 2
    first = max(costs, key=lambda cost: cost.cpu_s)
    assert first.name.endswith("::test_busy")
    assert first.cpu_s > 0.5
    head, busy, idle, total = dearest(costs).splitlines()
    assert head.endswith("the 2 tests that cost most")
    assert (busy.split()[-1], idle.split()[-1]) == (first.name, "test_two::test_idle")
    assert total.endswith("all 2")


def test_a_report_that_was_never_written_counts_nothing(tmp_path: Path) -> None:
    totals, costs = counted(tmp_path / "none.xml")
    assert (sum(totals.values()), costs) == (0, [])


def test_only_files_that_have_a_test_that_runs_alone_are_read_for_that_part(pytestconfig: pytest.Config) -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert pytest_ignore_collect(Path(__file__), pytestconfig) is None
        patch.setattr(pytestconfig.option, "markexpr", ALONE)
        files = list(FOLDER.rglob("test_*.py"))
        kept = [path for path in files if not pytest_ignore_collect(path, pytestconfig)]
    assert FOLDER / "engine/test_faults.py" in kept
    assert len(kept) < len(files) / 10
