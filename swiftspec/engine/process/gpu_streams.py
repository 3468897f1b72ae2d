"""A thread's own stream on a GPU that it shares with other threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["own_stream"]


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """What this thread launches meanwhile goes to a stream that no other thread uses; nothing happens on a CPU.

    device: `cpu` or `cuda:N`, the current GPU. Streams share its multiprocessors: torch makes each green context out of
    the whole device, so that those of two threads would overlap.
    """
    if device == "cpu":
        yield
    else:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            yield
