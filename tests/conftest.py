import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from swiftspec.engine.process.fork_server_client import shared_fork_server

pytest_plugins = ["pytester"]  # runs pytest itself, for the plugin of this package

if not torch.cuda.is_available():
    # Before anything imports Triton, as transformers does: its own functions, too, are decorated once.
    os.environ.setdefault("TRITON_INTERPRET", "1")  # 0 to compile what the tests launch, for a GPU elsewhere


# `nohup make test &` starts a program that ignores both, as all that it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 bytes: those of `tmp_path` may be longer."""
    with tempfile.TemporaryDirectory(prefix="test-", dir="/tmp") as folder:
        yield Path(folder)
