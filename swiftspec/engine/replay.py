"""The same work again: a function over fixed buffers, on a GPU recorded once and replayed as one CUDA graph.

A launch costs the host about as long as a small kernel runs, and a forward has hundreds of them; a graph is one.
Recording and replaying happen on the current stream: two roles share a GPU from one process by running each under
`torch.cuda.stream(..)` of its own, be it one of a green context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

__all__ = ["GraphPool", "Replay"]

T = TypeVar("T")


class GraphPool:
    """Memory that graphs share, since never two of them run at once. Answers of one are overwritten by another."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.handle = torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Replay(Generic[T]):
    """`function`, which reads its inputs from tensors that stay where they are, answers in tensors and waits for nothing.

    The first call runs it twice on a GPU: once eagerly, which compiles kernels and sizes workspaces, once as recorded.
    So it must be allowed to run again on the same inputs. Later calls answer in the same tensors.
    """

    def __init__(self, function: Callable[[], T], pool: GraphPool) -> None:
        self._function = function
        self._pool = pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._answer: T

    def __call__(self) -> T:
        """Its answer, on a GPU perhaps still being computed."""
        if self._pool.device.type != "cuda":
            return self._function()
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()
        return self._answer

    def _record(self) -> torch.cuda.CUDAGraph:
        self._function()
        current = torch.cuda.current_stream(self._pool.device)
        graph = torch.cuda.CUDAGraph()
        # A graph's kernels belong to the stream's context, green or not; the default stream cannot be recorded, and
        # torch takes one of its own instead. thread_local: another thread may allocate meanwhile.
        is_default = current == torch.cuda.default_stream(self._pool.device)
        with torch.cuda.graph(
            graph,
            pool=self._pool.handle,
            stream=None if is_default else current,
            capture_error_mode="thread_local",
        ):
            self._answer = self._function()
        return graph
