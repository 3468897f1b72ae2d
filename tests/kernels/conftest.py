"""Kernels run compiled where there is a GPU, else under Triton's interpreter; the compile gate needs no GPU."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.kernels.gate import compiler
from tools.compiling import Compiled

GATES = Path(__file__).parent / "gates"


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def compile_gate() -> Iterator[Callable[[str], list[Compiled]]]:
    """Compiled launches of `gates/<name>.py`, all from one process."""
    with compiler() as process:
        yield lambda name: process.compiled(GATES / f"{name}.py")
