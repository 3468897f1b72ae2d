"""Kernels compiled for a GPU that need not be there.

    python -m tests.kernels.gate

reads the paths of scripts, one a line, and answers each with a line: what the script launched, compiled for sm_90, as a
JSON list. One process compiles for all tests, as loading torch and Triton takes longer than most scripts.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tools.compiling import Compiled, compiling

ROOT = Path(__file__).parents[2]


class Compiler:
    """The process from outside."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def compiled(self, script: Path) -> list[Compiled]:
        """Launches of a script, in order. A script that fails ends the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{script}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._errors.read_text()
        return [Compiled(**kernel) for kernel in json.loads(answer)]


@contextmanager
def compiler() -> Iterator[Compiler]:
    """A process without TRITON_INTERPRET, started here and ended with the block.

    Nor with a cache filled ahead, which has no assembly to look at.
    """
    left_out = ("TRITON_INTERPRET", "TRITON_CACHE_DIR")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    command = [sys.executable, "-m", "tests.kernels.gate"]
    pipe = subprocess.PIPE
    with (
        tempfile.NamedTemporaryFile() as errors,
        subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=errors, text=True
        ) as process,
    ):
        yield Compiler(process, Path(errors.name))


def main() -> None:
    for line in sys.stdin:
        with compiling() as collected:
            runpy.run_path(line.strip())
        sys.stdout.write(json.dumps([asdict(kernel) for kernel in collected]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
