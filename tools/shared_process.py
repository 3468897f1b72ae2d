"""Executor whose roles are threads of one process, each with its own stream of the shared GPU.

Two processes take turns on a GPU; two streams of one process run concurrently. No plan places roles in this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from swiftspec.engine.process import worker_main
from swiftspec.engine.process.fork_server_client import ForkServer
from swiftspec.engine.process.pipes import PipeEnd, pipe
from swiftspec.engine.process.placement import LocalExecutor
from swiftspec.engine.process.protocol import Setup
from swiftspec.engine.process.worker_handle import LocalWorker, Worker
from swiftspec.profiler.helper_processes import forkserver

_NUM_ROLES = 2


class ThreadExecutor(LocalExecutor):
    """Executor on this machine, with one process for every two workers."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        super().__init__(folder, fork_server)
        self._free: list[tuple[Any, PipeEnd]] = []  # threads of a started process without a role yet

    def start(self, setup: Setup) -> Worker:
        if not self._free:
            device = "cpu" if setup.device == "cpu" else f"cuda:{setup.devices[0]}"
            pipes = [pipe() for _ in range(_NUM_ROLES)]
            process = forkserver().Process(target=_serve, args=([theirs for _, theirs in pipes], device), daemon=True)
            process.start()
            for _, theirs in pipes:
                theirs.close()
            self._free = [(_Process(process), ours) for ours, _ in pipes]
        return LocalWorker(setup, *self._free.pop())


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """Inside the context, launch this thread's kernels on a stream of its own; no effect on a CPU.

    device: `cpu` or `cuda:N`. Streams share its multiprocessors: torch makes each green context out of the whole
    device, so that those of two threads would overlap.
    """
    if device == "cpu":
        yield
    else:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            yield


def _serve(connections: Sequence[Connection], device: str) -> None:
    """Main function of the process: a thread for each connection. It ends when the launcher closes one of them."""
    torch.set_num_interop_threads(1)
    loading, load = Lock(), vars(worker_main)["_loaded"]

    def load_alone(*arguments: Any) -> Any:
        with loading:  # kernels are compiled once, and memory peaks one by one
            return load(*arguments)

    vars(worker_main)["_loaded"] = load_alone

    def run(connection: Connection) -> None:
        with own_stream(device):
            worker_main.obey(connection)

    threads = [Thread(target=run, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Process:
    """A process of multiprocessing's, with the methods of a `ForkedProcess`."""

    refusal = ""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.exitcode is not None

    def attend(self) -> None:
        pass

    def exit_code(self, *, within_s: float) -> int | None:
        self._process.join(within_s)
        return self._process.exitcode

    def end(self, *, within_s: float) -> None:
        if self.exit_code(within_s=within_s) is None:
            self.kill()
            self._process.join()

    def kill(self) -> None:
        self._process.kill()
