"""Kernels compiled for a GPU that need not be there."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.compiling import Compiled

__all__ = ["compiled"]

ROOT = Path(__file__).parents[2]


def compiled(script: Path) -> list[Compiled]:
    """What a script launches, compiled for sm_90 in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tools.compiling", str(script)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Compiled(**json.loads(line)) for line in done.stdout.splitlines()]
