"""Contention, from a made-up `/proc` and by real other processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swiftspec.devices import contention
from swiftspec.devices.contention import Contention, others_s, watch_contention

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
    found_s, used, own = others_s({0}, tmp_path), 100 + 10 + 20 + 3 + 2 + 5, 111 + 20 + 33
    assert found_s is not None
    assert found_s * ticks == pytest.approx(used - own)


def test_no_proc_tells_nothing(tmp_path: Path) -> None:
    assert others_s({0}, tmp_path / "none") is None


@pytest.mark.parametrize(("after_s", "share"), [(104.0, 0.2), (100.0, 0.0), (99.0, 0.0), (None, 0.0)])
def test_share_of_others(monkeypatch: pytest.MonkeyPatch, after_s: float | None, share: float) -> None:
    times, readings = iter((5.0, 15.0)), iter((100.0, after_s))
    monkeypatch.setattr(contention, "cores_here", lambda: {0, 1})
    monkeypatch.setattr(contention, "others_s", lambda _: next(readings))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    with watch_contention() as found:
        pass
    assert found.others_share == pytest.approx(share)


def test_a_busy_machine_is_called_so() -> None:
    assert Contention(others_share=0.2).is_busy
    assert not Contention(others_share=0.01).is_busy


def test_a_stranger_is_another() -> None:
    cores = os.sched_getaffinity(0)
    before_s = others_s(cores)
    # The child of a process that is gone belongs to nobody here; the pipe ends when it does.
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN!r}])"
    subprocess.run([sys.executable, "-c", orphan], check=True, stdout=subprocess.PIPE)
    after_s = others_s(cores)
    assert before_s is not None
    assert after_s is not None
    assert after_s - before_s > 0.4


def test_a_watch_ends_with_its_block() -> None:
    with watch_contention() as found:
        time.sleep(0.05)
    assert 0 <= found.others_share <= 1
