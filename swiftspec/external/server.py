"""The server of another engine, from its start until nothing of it runs any more."""

import errno
import math
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from swiftspec.external.group import ProcessGroup, process_group
from swiftspec.progress import Progress

_ENDS_WITHIN_S = 20.0  # a server of many GPUs that ends its workers
_ASK_EVERY_S = 0.25
_ANSWERS_WITHIN_S = 2.0
_TAIL_BYTES = 1 << 16
_LINE_CHARACTERS = 300
_ADDRESS = re.compile(r"\S+://\S+")  # of an explanation, which may have the word, too
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class ServerError(ValueError):
    """A server that cannot be started, is not ready in time, or has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """How a server is started, and where it is found then."""

    name: str  # the engine's, as sentences have it
    arguments: Sequence[str]  # the program and its arguments
    url: str  # http://127.0.0.1:PORT
    environment: Mapping[str, str]  # variables besides those of this process

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningServer:
    """A server that serves, unless `check` says otherwise."""

    command: ServerCommand
    group: ProcessGroup
    log: Path

    @property
    def url(self) -> str:
        return self.command.url

    def check(self) -> None:
        """ServerError, with what its log says, if the server has ended."""
        _check(self.group, f"{self.command.name} has ended", self.log)


@contextmanager
def started(
    command: ServerCommand,
    *,
    log: Path,
    timeout_s: float,
    progress: Progress,
    ends_within_s: float = _ENDS_WITHIN_S,
) -> Iterator[RunningServer]:
    """A server that is ready within the context, and of which no process runs after it.

    Interruptions end it, too; SIGTERM does where it raises KeyboardInterrupt, as in the command line.

    log: takes what the server prints; replaced. timeout_s: longest start. progress: seconds of it that have passed.
    ends_within_s: after that, or a second interruption, processes that were asked to end are killed.
    """
    environment = {**os.environ, **command.environment}
    program = command.arguments[0]
    if shutil.which(program, path=environment.get("PATH")) is None:
        raise ServerError(f"{command.name} cannot be started: there is no program {program}")
    if _is_taken(command.address):
        raise ServerError(f"{command.name} cannot be started at {command.url}: something else listens there")
    with (
        log.open("wb") as output,
        process_group(command.arguments, environment=environment, output=output, ends_within_s=ends_within_s) as group,
    ):
        _wait_until_ready(command, group, log, timeout_s, progress)
        yield RunningServer(command=command, group=group, log=log)


@contextmanager
def draft_server(words: Sequence[str], *, log: Path) -> Iterator[Callable[[], None]]:
    """A draft server within the context, if there are words for one, and a check that it has not ended."""
    if not words:
        yield lambda: None
        return
    here = (sys.executable, "-m", "swiftspec")
    program = words.index("swiftspec")
    arguments = (*words[:program], *here, *words[program + 1 :])
    with (
        log.open("wb") as output,
        process_group(arguments, environment=os.environ, output=output, ends_within_s=_ENDS_WITHIN_S) as group,
    ):
        yield lambda: _check(group, "the draft server has ended", log)


def _wait_until_ready(
    command: ServerCommand, group: ProcessGroup, log: Path, timeout_s: float, progress: Progress
) -> None:
    begin_s = time.monotonic()
    while (waited_s := time.monotonic() - begin_s) < timeout_s:
        progress(int(waited_s), math.ceil(timeout_s), f"seconds of {command.name}'s start")
        is_ready = _is_ready(command, within_s=min(_ANSWERS_WITHIN_S, timeout_s - waited_s))
        _check(group, f"{command.name} ended before it was ready", log)
        if is_ready:
            return
        time.sleep(_ASK_EVERY_S)
    raise ServerError(f"{command.name} is not ready after {timeout_s:g} s; its log is {log}")


def _is_taken(address: tuple[str, int]) -> bool:
    try:
        socket.create_server(address).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _is_ready(command: ServerCommand, *, within_s: float) -> bool:
    with closing(HTTPConnection(*command.address, timeout=within_s)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False


def _check(group: ProcessGroup, what: str, log: Path) -> None:
    """ServerError, which begins with `what`, if the leader has ended."""
    code = group.exit_code
    if code is not None:
        how = f"exit code {code}" if code >= 0 else _signal_name(-code)
        raise ServerError(f"{what} ({how}): {_complaint(log)}; its log is {log}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _complaint(log: Path) -> str:
    """The last line of a log that speaks of an error, or its last one, without styles and cut short."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = _STYLE.sub("", file.read().decode(errors="replace"))
    lines = [line for raw in text.splitlines() if (line := " ".join(raw.split()))]
    errors = [line for line in lines if "error" in _ADDRESS.sub("", line).lower()]
    line = (errors or lines or ["it printed nothing"])[-1]
    return line if len(line) <= _LINE_CHARACTERS else f"{line[: _LINE_CHARACTERS - 3]}..."
