"""Processes that measure something together, forked from one that has loaded torch, which takes seconds once."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver as python_forkserver
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from swiftspec.interpreters import safe_multiprocessing
from swiftspec.parent_death import signal_on_parent_death


def forkserver(*modules: str) -> ForkServerContext:
    """Fork server of this process's helpers; they initialise CUDA themselves, since it does not survive a fork.

    modules: what helpers import besides torch. The first caller's are loaded once for all of them.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", *modules])
    with safe_multiprocessing():
        resource_tracker.ensure_running()
        python_forkserver.ensure_running()
    return context


def answer_of_ranks(what: str, function: Callable[..., None], arguments: tuple[Any, ...], *, num_ranks: int) -> Any:
    """Answer that one of the ranks puts into a queue: each runs `function(rank, *arguments, queue)`.

    RuntimeError naming `what` if one fails. torch has the same, but reads a failed rank's error, as a pickle, from a
    file in a folder where everybody may put one.
    """
    context = forkserver(function.__module__)
    answers, failures = context.SimpleQueue(), context.SimpleQueue()
    ranks = [
        context.Process(target=_run, args=(function, rank, arguments, answers, failures)) for rank in range(num_ranks)
    ]
    try:
        for rank in ranks:
            rank.start()
        failed = _first_failed(ranks)
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()
    if failed is not None:
        why = f"exit code {failed.exitcode}" if failures.empty() else failures.get()
        raise RuntimeError(f"{what} failed: {why}")
    return answers.get()


def _run(function: Callable[..., None], rank: int, arguments: tuple[Any, ...], answers: Any, failures: Any) -> None:
    with suppress(OSError):  # a kernel without it
        signal_on_parent_death(signal.SIGKILL)  # the fork server ends with its program; this rank may be waiting
    try:
        function(rank, *arguments, answers)
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception:  # noqa: BLE001 - whatever it is, the program reports it
        failures.put(f"rank {rank}: {traceback.format_exc()}")
        sys.exit(1)


def _first_failed(ranks: Sequence[ForkServerProcess]) -> ForkServerProcess | None:
    """A rank that ends with an error, as soon as there is one; None once all have ended well."""
    running = list(ranks)
    while running:
        wait([rank.sentinel for rank in running])
        ended = [rank for rank in running if rank.exitcode is not None]
        if failed := [rank for rank in ended if rank.exitcode]:
            return failed[0]
        running = [rank for rank in running if rank not in ended]
    return None
