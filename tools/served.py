"""A server in a process of its own, for measurements and tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_READY_WITHIN_S = 120.0


class Served(NamedTuple):
    """A server's process and address."""

    process: subprocess.Popen[bytes]
    url: str


@contextmanager
def served(plan: Path, *arguments: str, log: Path, before: Sequence[str] = ()) -> Iterator[Served]:
    """`swiftspec serve` on a free port, ready; it is killed at the end, if it still runs.

    log: takes what it says. before: a command that runs another one, such as `env NAME=value`. RuntimeError if it ends
    instead, or is not ready in time.
    """
    command = [*before, sys.executable, "-m", "swiftspec", "serve", "--plan", str(plan), "--port", "0", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield Served(process, _url(process, log))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    until_s = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < until_s:
        said = log.read_text(encoding="utf-8")
        if "Serving " in said:
            return "http://" + said.partition("http://")[2].partition(" ")[0]
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended: {said}")
        time.sleep(0.05)
    raise RuntimeError(f"the server is not ready: {log.read_text(encoding='utf-8')}")
