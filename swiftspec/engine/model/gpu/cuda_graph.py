"""CUDA graph capture: a function over fixed buffers is captured once on a GPU and replayed as one graph.

A launch costs the host about as long as a small kernel runs, and a forward has hundreds of launches; a graph is a
single one. A replay runs on the current stream, so two roles of one process can share a GPU, a thread each, with a
`torch.cuda.stream(..)` each.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class GraphPool:
    """Memory and stream shared by graphs that never run at once; a result is valid until another graph runs.

    Kernels keep workspaces per stream, so graphs of different pools may run concurrently.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.records = device.type == "cuda"
        self._handle = torch.cuda.graph_pool_handle() if self.records else None
        self._stream = torch.cuda.Stream(device) if self.records else None
        self._first: torch.cuda.CUDAGraph | None = None

    def record(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """A callable that runs `function` again, and the tensors that hold its results. First it runs eagerly, once."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        # The default stream cannot capture.
        stream = self._stream if current == torch.cuda.default_stream(self.device) else current
        assert stream is not None, "only a GPU records"
        stream.wait_stream(current)
        if self._first is None:
            # torch forgets a pool when its last graph is gone, and then refuses its handle. This graph stays.
            self._first = torch.cuda.CUDAGraph()
            with self._capture(self._first, stream):
                torch.zeros(1, device=self.device)
        with torch.cuda.stream(stream):
            function()
        with self._capture(graph, stream):
            answer = function()
        current.wait_stream(stream)
        return graph.replay, answer

    def _capture(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> torch.cuda.graph:
        # thread_local: another thread, with another model, may allocate during the capture.
        return torch.cuda.graph(graph, pool=self._handle, stream=stream, capture_error_mode="thread_local")


class Replay(Generic[T]):
    """A function from tensors at fixed addresses to tensors, which never waits for the device; captured on a GPU.

    On a GPU the first call captures it, and later ones return the same tensors; elsewhere every call runs it. Running
    it again on the same inputs must be safe.
    """

    def __init__(self, function: Callable[[], T], pool: GraphPool) -> None:
        self._function = function
        self._pool = pool
        self._recorded: tuple[Callable[[], None], T] | None = None

    def __call__(self) -> T:
        """Its result, on a GPU perhaps still being computed."""
        if not self._pool.records:
            return self._function()
        if self._recorded is None:
            self._recorded = self._pool.record(self._function)
        run, answer = self._recorded
        run()
        return answer
