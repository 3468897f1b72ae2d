import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path

import pytest

from swiftspec.engine.nursery import Nursery, shared_nursery
from swiftspec.errors import EngineError


@contextmanager
def worker(nursery: Nursery) -> Iterator[int]:
    """The id of a process that waits to be told what it is."""
    ours, theirs = Pipe()
    with theirs:
        pid = nursery.start([theirs.fileno()])
    with ours:
        yield pid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_launcher_needs_no_torch() -> None:
    program = "import sys, swiftspec.engine.launcher; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_who_is_there_together_shares_a_nursery_and_the_last_one_ends_it() -> None:
    with shared_nursery() as outer, worker(outer) as first:
        with shared_nursery() as inner, worker(inner) as second:
            assert inner is outer
            assert parent(first) == parent(second)
        assert outer.is_there


def test_one_that_was_killed_is_replaced_for_who_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftspec.engine.nursery._shared", [])
    with shared_nursery() as killed, worker(killed) as pid:
        nursery = parent(pid)
        os.kill(nursery, signal.SIGKILL)
        assert killed.exit_code(pid, within_s=10.0) is None  # nobody can say
        with pytest.raises(EngineError, match="has gone"):
            killed.start([1])
        with shared_nursery() as other, worker(other) as second:
            assert other is not killed
            assert parent(second) != nursery


def test_a_process_that_is_told_nothing_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    with shared_nursery() as nursery:
        with worker(nursery) as pid:
            pass
        assert nursery.exit_code(pid, within_s=10.0) == 0
    assert capfd.readouterr().err == ""


def test_a_folder_that_was_removed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with shared_nursery() as nursery, pytest.raises(ValueError, match="the current folder has been removed"):
        nursery.start([1])


def test_processes_are_where_the_launcher_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_nursery() as nursery, worker(nursery):
        monkeypatch.chdir(tmp_path)
        with worker(nursery) as pid:
            for _ in range(1000):  # until it has come there
                if Path(f"/proc/{pid}/cwd").readlink() == tmp_path:
                    return
                os.sched_yield()
            raise AssertionError(f"it is in {Path(f'/proc/{pid}/cwd').readlink()}")
