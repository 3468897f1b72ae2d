"""`make test` itself: what it says of costs, and the order in which it begins."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import FOLDER, LONGEST
from tests.run import counted, dearest

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
    assert first.cpu_s >= 0.6
    head, busy, idle, total = dearest(costs).splitlines()
    assert head.endswith("the 2 tests that cost most")
    assert (busy.split()[-1], idle.split()[-1]) == (first.name, "test_two::test_idle")
    assert total.endswith("all 2")


def test_a_report_that_was_never_written_counts_nothing(tmp_path: Path) -> None:
    totals, costs = counted(tmp_path / "none.xml")
    assert (sum(totals.values()), costs) == (0, [])
