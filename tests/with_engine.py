"""Fixtures and preparations of tests that run the engine: `tests.conftest` loads them where the engine is installed."""

import os
from collections.abc import Iterator

import pytest
import torch

from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.kernels.cpu_library import prepare_library

if not torch.cuda.is_available():
    # Before anything imports Triton, as transformers does: its own functions, too, are decorated once.
    os.environ.setdefault("TRITON_INTERPRET", "1")  # 0 to compile what the tests launch, for a GPU elsewhere


def pytest_configure() -> None:
    """Compile the CPU kernels before any test could be the one that waits for it, and says so."""
    prepare_library()


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[None]:
    """Engines of this process, one after another, are forked off one: a thousand seconds of loading torch."""
    with shared_fork_server():
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors on one intra-op thread: more of them only wait for each other, long if the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
