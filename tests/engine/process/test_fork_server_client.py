"""The fork server from outside: the processes it starts, and its callers' fate when it dies, freezes or refuses."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swiftspec.engine.process.fork_server_client import ForkedProcess, ForkServer, shared_fork_server
from swiftspec.engine.process.pipes import PipeEnd, pipe
from swiftspec.engine.process.worker_handle import LocalWorker, WorkerLostError
from swiftspec.errors import EngineError
from swiftspec.policies.effects import Role
from tests.engine.processes import children, engine_processes, gone_within, is_running, until
from tests.engine.setups import setup

WITHIN_S = 60.0


def start(fork_server: ForkServer) -> tuple[ForkedProcess, PipeEnd]:
    """Ask for a process that waits to be told what it is."""
    ours, theirs = pipe()
    with theirs:
        return fork_server.start(theirs.fileno()), ours


def started(process: ForkedProcess) -> int:
    def has_started() -> bool:
        process.attend()
        return process.pid is not None

    until(has_started)
    assert process.pid is not None
    return process.pid


@contextmanager
def worker(fork_server: ForkServer) -> Iterator[int]:
    process, ours = start(fork_server)
    yield started(process)
    ours.close()


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    """One of its own, which may be ill-treated."""
    fork_server = ForkServer()
    yield fork_server
    fork_server.close()


def test_a_launcher_needs_no_torch() -> None:
    program = "import sys, swiftspec.engine.launcher; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_who_is_there_together_shares_a_fork_server_and_the_last_one_ends_it() -> None:
    with shared_fork_server() as outer, worker(outer) as first:
        with shared_fork_server() as inner, worker(inner) as second:
            assert inner is outer
            assert {first, second} <= set(children(outer.pid or 0))
        assert outer.pid is not None


def test_one_that_was_killed_is_replaced_and_its_workers_live_on(fork_server: ForkServer) -> None:
    with worker(fork_server) as first:
        killed = fork_server.pid
        assert killed
        os.kill(killed, signal.SIGKILL)
        assert gone_within([killed], 30.0)
        with worker(fork_server) as second:
            assert fork_server.pid != killed
            assert is_running(first)
            assert second in children(fork_server.pid or 0)


def test_asking_a_stopped_one_does_not_wait_and_it_is_replaced(fork_server: ForkServer) -> None:
    with worker(fork_server):
        stopped = fork_server.pid
        assert stopped
        os.kill(stopped, signal.SIGSTOP)
        before_s = time.monotonic()
        process, ours = start(fork_server)
        assert time.monotonic() - before_s < 3.0

        def has_hung_up() -> bool:
            process.attend()
            return ours.poll()

        until(has_hung_up)
        ours.close()
        assert process.pid is None
        assert gone_within([stopped], 30.0)
        with worker(fork_server):
            assert fork_server.pid != stopped


def test_a_start_that_comes_to_nothing_says_why(fork_server: ForkServer) -> None:
    """Killed before it has finished its imports."""
    lost = LocalWorker.start(setup(role=Role.DRAFT), fork_server)
    assert fork_server.pid
    os.kill(fork_server.pid, signal.SIGKILL)
    until(lost.poll)
    with pytest.raises(WorkerLostError, match="the draft process could not be started: the fork server") as failure:
        next(lost.reports())
    assert not failure.value.was_started
    lost.hang_up()


def test_a_process_that_is_told_nothing_ends_without_a_word(
    fork_server: ForkServer, capfd: pytest.CaptureFixture[str]
) -> None:
    process, ours = start(fork_server)
    started(process)
    ours.close()
    assert process.exit_code(within_s=60.0) == 0
    assert process.has_ended
    assert capfd.readouterr().err == ""


def test_without_a_descriptor_for_it_a_fork_server_is_not_started_and_later_it_is(fork_server: ForkServer) -> None:
    ours, theirs = pipe()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(ours.fileno(), theirs.fileno()), before[1]))
    try:
        with pytest.raises(EngineError, match=r"^the fork server cannot be started \(.*Too many open files\)$"):
            fork_server.start(theirs.fileno())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        ours.close()
        theirs.close()
    with worker(fork_server):
        assert fork_server.pid


@pytest.mark.usefixtures("many_descriptors")
def test_a_program_with_a_thousand_open_files_can_start_processes(fork_server: ForkServer) -> None:
    process, ours = start(fork_server)
    started(process)
    assert ours.fileno() > 1023
    assert not process.has_ended
    ours.close()
    assert process.await_end(within_s=60.0)
    assert process.exit_code(within_s=60.0) == 0


def test_killing_a_process_that_has_ended_hits_nobody(fork_server: ForkServer) -> None:
    """Its process id may be another's by now, and nobody is left to say whether it has ended."""
    process, ours = start(fork_server)
    started(process)
    ours.close()
    assert process.await_end(within_s=60.0)
    process.pid = os.getpid()  # as if the system had given it away again
    process.kill()


def test_a_process_can_be_killed_without_its_fork_server(fork_server: ForkServer) -> None:
    process, ours = start(fork_server)
    pid = started(process)
    os.kill(pid, signal.SIGSTOP)
    assert fork_server.pid
    os.kill(fork_server.pid, signal.SIGKILL)
    until(lambda: not is_running(fork_server.pid or 0))
    os.kill(pid, signal.SIGSTOP)  # again: the end of the fork server has continued it
    process.kill()
    assert process.await_end(within_s=60.0)
    assert gone_within([pid], 30.0)
    ours.close()


def test_a_folder_that_was_removed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with shared_fork_server() as fork_server, pytest.raises(ValueError, match="the current folder has been removed"):
        fork_server.start(1)


def test_processes_are_where_the_launcher_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_fork_server() as fork_server, worker(fork_server):
        monkeypatch.chdir(tmp_path)
        with worker(fork_server) as pid:
            until(lambda: Path(f"/proc/{pid}/cwd").readlink() == tmp_path)


LAUNCHER = """
import sys, time
from swiftspec.engine.process.fork_server_client import ForkServer
from swiftspec.engine.process.pipes import pipe
fork_server = ForkServer()
ours, theirs = pipe()
process = fork_server.start(theirs.fileno())
theirs.close()
print("asked", flush=True)
while process.pid is None:
    process.attend()
    time.sleep(0.01)
print(fork_server.pid, process.pid, flush=True)
time.sleep(600)
"""


@contextmanager
def launcher() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=["fork server", "worker", "both"])
def test_nothing_survives_a_killed_launcher_even_if_it_is_stopped(which: tuple[int, ...]) -> None:
    with launcher() as process:
        assert process.stdout
        process.stdout.readline()
        pids = [int(pid) for pid in process.stdout.readline().split()]
        for number in which:
            os.kill(pids[number], signal.SIGSTOP)
        process.kill()
        process.wait()
        assert gone_within(pids, 30.0)


def test_a_launcher_killed_while_the_fork_server_imports_torch_leaves_nothing() -> None:
    with launcher() as process:
        assert process.stdout
        process.stdout.readline()
        until(lambda: bool(engine_processes(process.pid)))
        time.sleep(0.3)  # into its imports
        process.kill()
        process.wait()
        assert gone_within(engine_processes(process.pid), 30.0)
