"""Kernels run compiled where there is a GPU, else under Triton's interpreter; the compile gate needs no GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swiftspec.kernels.compiling import Compiled

GATES = Path(__file__).parent / "gates"


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def compile_gate() -> Callable[[str], list[Compiled]]:
    """What `gates/<name>.py` launches, compiled for sm_90 in a process of its own."""

    def compile_all(name: str) -> list[Compiled]:
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "swiftspec.kernels.compiling", str(GATES / f"{name}.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [Compiled(**json.loads(line)) for line in done.stdout.splitlines()]

    return compile_all
