"""The same work again: a function over fixed buffers, on a GPU recorded once and replayed as one CUDA graph.

A launch costs the host about as long as a small kernel runs, and a forward has hundreds of them; a graph is one. A
replay runs on the current stream. So two roles can share a GPU from one process, a thread each, by running under
`torch.cuda.stream(..)` of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

__all__ = ["GraphPool", "Replay"]

T = TypeVar("T")


class GraphPool:
    """What graphs share that never run at once: memory, where an answer lives until another graph runs, and a stream.

    Kernels keep workspaces per stream, so that graphs of different pools may run side by side.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.records = device.type == "cuda"
        self._handle = torch.cuda.graph_pool_handle() if self.records else None
        self._stream = torch.cuda.Stream(device) if self.records else None

    def record(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """What to call to run `function` again, and the tensors that it answers in.

        On a GPU it runs once eagerly, which compiles kernels and sizes workspaces, and once as recorded.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        # The default stream cannot record.
        stream = self._stream if current == torch.cuda.default_stream(self.device) else current
        assert stream is not None, "only a GPU records"
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            function()
        # thread_local: another thread, with another model, may allocate meanwhile.
        with torch.cuda.graph(graph, pool=self._handle, stream=stream, capture_error_mode="thread_local"):
            answer = function()
        current.wait_stream(stream)
        return graph.replay, answer


class Replay(Generic[T]):
    """`function`, which reads tensors that stay where they are, answers in tensors, and never waits for the device.

    On a GPU the first call records it, and later ones answer in the same tensors; elsewhere every call runs it. It must
    be allowed to run again on the same inputs.
    """

    def __init__(self, function: Callable[[], T], pool: GraphPool) -> None:
        self._function = function
        self._pool = pool
        self._recorded: tuple[Callable[[], None], T] | None = None

    def __call__(self) -> T:
        """Its answer, on a GPU perhaps still being computed."""
        if not self._pool.records:
            return self._function()
        if self._recorded is None:
            self._recorded = self._pool.record(self._function)
        run, answer = self._recorded
        run()
        return answer
