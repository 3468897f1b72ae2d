"""The command line on a machine that lacks packages, or is not Linux, as far as Linux can show it.

    python -m tests.cli.lacking SYSTEM PACKAGES

reads the arguments of verbs, a JSON list a line, and answers each with a line: exit code, output and errors.
SYSTEM is linux, darwin or win32. PACKAGES, with commas between, are not found, as if they were not installed.
"""

import io
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0

# The systems' own code and that of the libraries expect the system that is here, so it is loaded before.
_LOADED_BEFORE = (
    *("asyncio", "ctypes", "multiprocessing.resource_tracker", "platform", "subprocess", "tempfile"),
    *("joblib", "numpy", "pydantic", "rich.console", "rich.progress", "rich.table", "simpy", "typer.testing"),
    *("scipy.interpolate", "scipy.optimize", "scipy.special", "scipy.stats"),
)
_LINUX_ONLY = ["memfd_create", "pidfd_open", "pipe2", "sched_getaffinity", "sched_setaffinity"]
_NOT_ON_WINDOWS = [
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fchown", "mkfifo", "statvfs"),
    *("fork", "forkpty", "getpgid", "getsid", "killpg", "nice", "posix_spawn", "setpgid", "setsid"),
    *("getegid", "geteuid", "getgid", "getuid", "sysconf", "uname"),
    *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2"),
    *("alarm", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait"),
]
_MODULES = {"linux": [], "darwin": [], "win32": ["fcntl", "grp", "pwd", "resource", "termios"]}


class _Finder(PathFinder):
    """The finder of installed packages, which finds some of them no more."""

    lacking: frozenset[str] = frozenset()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in cls.lacking else PathFinder.find_spec(fullname, path, target)


def lack(packages: Sequence[str]) -> None:
    """Let imports of these packages fail from now on."""
    assert not sys.modules.keys() & set(packages)
    _Finder.lacking = frozenset(packages)
    sys.meta_path[:] = [_Finder if finder is PathFinder else finder for finder in sys.meta_path]


def pretend(system: str) -> None:
    """Let this process have what another system has of the standard library."""
    for name in _LOADED_BEFORE:
        import_module(name)
    platform.processor()  # asks a program named uname, once
    sys.platform = system
    for name in _LINUX_ONLY + (_NOT_ON_WINDOWS if system == "win32" else []):
        for module in (os, signal):
            vars(module).pop(name, None)
    for name in _MODULES[system]:
        sys.modules.pop(name, None)
    sys.addaudithook(_no_linux)


def _no_linux(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to open what only Linux has, unless its absence was looked for, and new processes."""
    path = str(arguments[0]) if event == "open" and arguments else ""
    if path.startswith(("/dev/shm", "/proc")) and path != "/proc/cpuinfo":
        raise AssertionError(f"{path} is Linux's")
    if event in ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"):
        raise AssertionError(f"{event} {arguments}")


class Done(NamedTuple):
    """A verb that has ended."""

    exit_code: int
    out: str
    err: str


class Machine:
    """Such a machine from outside: one process, as starting takes longer than most verbs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *arguments: object) -> Done:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        timer = Timer(DEADLINE_S, self._process.kill)
        timer.start()
        answer = self._process.stdout.readline()
        timer.cancel()
        assert answer, f"ended by {arguments}, or by the deadline"
        return Done(*json.loads(answer))


@contextmanager
def machine(system: str, packages: Sequence[str]) -> Iterator[Machine]:
    """Started here, and ended with the block."""
    command = [sys.executable, "-m", "tests.cli.lacking", system, ",".join(packages)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield Machine(process)


def serve() -> None:
    from swiftspec.cli.app import main

    answers = sys.stdout
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(json.loads(line))
        answers.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _, system, packages = sys.argv
    if system != "linux":
        pretend(system)
    lack([*packages.split(","), *_MODULES[system]])
    serve()
