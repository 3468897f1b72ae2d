"""The operating system's view of processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

_FORK_SERVER = "swiftspec.engine.process.fork_server"


def children(pid: int) -> list[int]:
    """In the order in which each task made them: numbers start again at the system's largest, so they say nothing."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def workers(pid: int) -> list[int]:
    """The engine's, the target's first: children of the one process that forks them."""
    return [worker for fork_server in children(pid) for worker in children(fork_server)]


def engine_processes(launcher: int) -> list[int]:
    """Fork servers and workers of a launcher, also of one that has gone: a worker keeps its fork server's arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has gone
            continue
        if _FORK_SERVER.encode() in arguments and str(launcher).encode() in arguments:
            found.append(int(entry.name))
    return sorted(pid for pid in found if is_running(pid))


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def num_files(pid: int) -> int:
    """Open descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def hear_interrupts() -> None:
    """For `preexec_fn`: a shell starts what it runs in the background with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(happened: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Wait for something that is seen to happen a moment later."""
    deadline_s = time.monotonic() + within_s
    while not happened():
        time.sleep(0.01)
        assert time.monotonic() < deadline_s
