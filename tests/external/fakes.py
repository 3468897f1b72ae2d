"""A small server that stands in for another engine's, and a program that starts it."""

import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from swiftspec.external import RunningServer, ServerCommand, ServerError, started
from swiftspec.machine import free_port
from swiftspec.progress import Progress
from tests.engine.processes import is_running

# Arguments: port, file for its process id, how often it answers 503 first, whether a child of its own ignores SIGTERM.
SERVER = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
port, pid, busy, stubborn = sys.argv[1:]
polls = 0
if stubborn == "stubborn":
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    child.stdout.readline()
Path(pid).write_text(str(os.getpid()))
print("greeting:", os.environ.get("GREETING"), flush=True)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global polls
        polls += 1
        if self.path == "/die":
            print("RuntimeError: out of \\x1b[31mmemory\\x1b[0m", flush=True)
            os._exit(3)
        self.send_response(200 if self.path == "/health" and polls > int(busy) else 503)
        self.end_headers()

HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""

# A program as the command line is one. Arguments: those of the server's command line.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from swiftspec.cli.program import run_program
from swiftspec.external import ServerCommand, started

def main():
    _, log, url, *arguments = sys.argv
    command = ServerCommand(name="fake", arguments=arguments, url=url, environment={})
    try:
        with started(
            command, log=Path(log), timeout_s=60, progress=lambda *_: None, ends_within_s=600
        ) as server:
            print(server.group.pid, flush=True)
            while True:
                signal.pause()
    finally:
        try:
            os.killpg(server.group.pid, 0)
        except ProcessLookupError:
            print("nothing is left", flush=True)

sys.exit(run_program(main))
"""


def ignored(done: int, total: int, what: str, /) -> None:
    """No progress."""


@dataclass
class Fake:
    """Starts servers that are made for this test."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "pid"

    def command(self, *, busy: int = 0, stubborn: bool = False) -> ServerCommand:
        script, port = self.folder / "server.py", free_port()
        script.write_text(SERVER)
        arguments = [str(script), str(port), str(self.pid_file), str(busy), "stubborn" if stubborn else "obedient"]
        return self.running(sys.executable, *arguments, port=port)

    def running(self, *arguments: str, port: int = 0) -> ServerCommand:
        url = f"http://127.0.0.1:{port or free_port()}"
        return ServerCommand(name="fake", arguments=arguments, url=url, environment={"GREETING": "good morning"})

    def started(
        self,
        command: ServerCommand,
        *,
        timeout_s: float = 60.0,
        progress: Progress = ignored,
        ends_within_s: float = 0.5,
    ) -> AbstractContextManager[RunningServer]:
        return started(command, log=self.log, timeout_s=timeout_s, progress=progress, ends_within_s=ends_within_s)

    def fails(self, command: ServerCommand, *, timeout_s: float = 60.0) -> str:
        """The error of its start."""
        with pytest.raises(ServerError) as error, self.started(command, timeout_s=timeout_s):
            pytest.fail("it has started")
        return str(error.value)


def members(group: int) -> list[int]:
    """Running processes of a group."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if is_running(pid) and group_of(pid) == group]


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
