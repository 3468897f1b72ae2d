"""Processes that measure something together, forked from one that has loaded torch, which takes seconds once."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from torch.multiprocessing.spawn import ProcessException, start_processes

__all__ = ["answer_of_ranks", "forkserver"]


def forkserver() -> ForkServerContext:
    """Fork server of this process's helpers; they initialise CUDA themselves, since it does not survive a fork."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    return context


def answer_of_ranks(what: str, function: Callable[..., None], arguments: tuple[Any, ...], *, num_ranks: int) -> Any:
    """Answer that one of the ranks puts into a queue: each runs `function(rank, *arguments, queue)`.

    RuntimeError naming `what` if one fails.
    """
    answers = forkserver().SimpleQueue()
    ranks = start_processes(
        function, args=(*arguments, answers), nprocs=num_ranks, join=False, start_method="forkserver"
    )
    try:
        while not ranks.join():
            pass
    except ProcessException as error:
        raise RuntimeError(f"{what} failed: {error}") from error
    finally:
        for path in ranks.error_files:  # torch leaves the file of a failed rank
            Path(path).unlink(missing_ok=True)
    return answers.get()
