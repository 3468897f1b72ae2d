"""Contention, from a made-up `/proc` and by real other processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swiftspec.devices.contention import Contention, CpuTimes, cpu_times, others_share, watch_contention

STAT = """cpu  400 0 0 1000 0 0 0 0 0 0
cpu0 100 10 20 500 7 3 2 5 50 0
cpu1 300 0 0 500 0 0 0 0 0 0
intr 5
"""
BURN = "import time\nwhile time.process_time() < 0.5: pass"  # seconds of CPU time, however busy the machine is


def process(proc: Path, number: int, parent: int, *ticks: int, name: str = "python") -> None:
    (proc / str(number)).mkdir()
    fields = ["S", str(parent), *["0"] * 9, *map(str, ticks), "20"]
    (proc / str(number) / "stat").write_text(f"{number} ({name}) {' '.join(fields)}\n")


def test_times_are_of_own_cores_and_of_own_descendants(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    process(tmp_path, os.getpid(), 1, 10, 1, 100, 0)
    process(tmp_path, 7, os.getpid(), 20, 0, 0, 0, name="a) 1 (b")
    process(tmp_path, 8, 7, 30, 0, 0, 3)
    process(tmp_path, 9, 1, 1000, 0, 0, 0)  # a stranger
    (tmp_path / "12").mkdir()  # it has just ended
    ticks = os.sysconf("SC_CLK_TCK")
    times = cpu_times({0}, tmp_path)
    assert times is not None
    assert times.used_s * ticks == pytest.approx(100 + 10 + 20 + 3 + 2 + 5)
    assert times.own_s * ticks == pytest.approx(111 + 20 + 33)


def test_no_proc_tells_nothing(tmp_path: Path) -> None:
    assert cpu_times({0}, tmp_path / "none") is None


def test_share_of_others() -> None:
    before = CpuTimes(wall_s=0.0, used_s=100.0, own_s=10.0)
    after = CpuTimes(wall_s=10.0, used_s=112.0, own_s=18.0)
    assert others_share(before, after, num_cores=2) == pytest.approx(0.2)
    assert others_share(before, before, num_cores=2) == 0.0
    assert Contention(others_share=0.2).is_busy
    assert not Contention(others_share=0.01).is_busy


def test_own_children_are_not_others_and_a_stranger_is() -> None:
    cores = os.sched_getaffinity(0)
    before = cpu_times(cores)
    subprocess.run([sys.executable, "-c", BURN], check=True)
    between = cpu_times(cores)
    # The child of a process that is gone belongs to nobody here; the pipe ends when it does.
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}])"
    subprocess.run([sys.executable, "-c", orphan], check=True, stdout=subprocess.PIPE)
    after = cpu_times(cores)
    assert before is not None
    assert between is not None
    assert after is not None
    assert between.own_s - before.own_s > 0.4
    assert (after.used_s - between.used_s) - (after.own_s - between.own_s) > 0.4


def test_a_watch_ends_with_its_block() -> None:
    with watch_contention() as found:
        time.sleep(0.05)
    assert 0 <= found.others_share <= 1
