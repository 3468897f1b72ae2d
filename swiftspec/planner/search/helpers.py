"""Processes that make some of this program's calls, on Linux: forked, they begin at once and know all that it knows.

A process that is started anew takes a second to import what a simulation needs, and is sent the profile and the trace.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from swiftspec.errors import EngineError
from swiftspec.parent_death import signal_on_parent_death

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, ForkProcess  # which not every system has

CAN_FORK = sys.platform == "linux"  # elsewhere, libraries of the system do not survive it
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]  # as `joblib.delayed` makes it


class HelperLostError(EngineError):
    """A helper ended before its call did: most often for want of memory."""


def divided(calls: Sequence[Call], num_helpers: int) -> Iterator[Any]:
    """Results of calls, in their order. Whoever is free makes the next one, this program included.

    Without helpers they are made one by one. What a call raises is raised here. HelperLostError if a helper was killed.
    """
    if num_helpers < 1 or len(calls) < 2:
        for function, arguments, named in calls:
            yield function(*arguments, **named)
        return
    queue = _Queue(calls)
    helpers = [_Helper(queue) for _ in range(min(num_helpers, len(calls) - 1))]
    results: dict[int, Any] = {}
    try:
        for number in range(len(calls)):
            while number not in results:
                if (taken := queue.take()) is not None:
                    results[taken] = queue.make(taken)
                for answered, value, error in _answers(helpers, may_wait=taken is None):
                    if error is not None:
                        raise error
                    results[answered] = value
            yield results.pop(number)
    finally:
        for helper in helpers:
            helper.end()


class _Answer(NamedTuple):
    number: int
    value: Any
    error: BaseException | None


class _Queue:
    """Calls, and how many of them have been taken by anybody."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self.context: ForkContext = multiprocessing.get_context("fork")
        self._num_taken = self.context.Value("q", 0)

    def take(self) -> int | None:
        """Number of the next call, which is the caller's from now on; None if there is none left."""
        with self._num_taken.get_lock():
            number: int = self._num_taken.value
            if number == len(self._calls):
                return None
            self._num_taken.value = number + 1
            return number

    def make(self, number: int) -> Any:
        function, arguments, named = self._calls[number]
        return function(*arguments, **named)


class _Helper:
    """A process, and the connection through which its answers come."""

    def __init__(self, queue: _Queue) -> None:
        self.connection, answers = queue.context.Pipe()
        self._process: ForkProcess = queue.context.Process(
            target=_help, args=(queue, answers, os.getpid()), daemon=True
        )
        with _held():
            self._process.start()
        answers.close()

    def answer(self) -> _Answer | None:
        """The next answer, which has come; None if it was the last."""
        try:
            answer: _Answer | None = self.connection.recv()
        except EOFError:
            self._process.join()
            raise HelperLostError(
                f"a process that computes for this one ended unexpectedly, with exit code {self._process.exitcode}; "
                "--jobs 1 needs least memory"
            ) from None
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _answers(helpers: list[_Helper], *, may_wait: bool) -> Iterator[_Answer]:
    """Answers that have come. Helpers without further ones are left out from now on."""
    found = {helper.connection: helper for helper in helpers}
    for connection in wait(list(found), timeout=None if may_wait else 0):
        assert isinstance(connection, Connection)
        if (answer := found[connection].answer()) is None:
            found[connection].end()
            helpers.remove(found[connection])
        else:
            yield answer


def _help(queue: _Queue, answers: Connection, program: int) -> None:
    """What a helper does. Interrupting the program is none of its business; it ends with it."""
    with suppress(OSError):  # of a kernel without this feature: it ends after its call, when it sends the answer
        signal_on_parent_death(signal.SIGKILL)
        if os.getppid() != program:  # it ended before that
            os._exit(1)
    for ending in _ending():
        signal.signal(ending, signal.SIG_IGN if ending is signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ending())
    while (number := queue.take()) is not None:
        try:
            answer = _Answer(number, queue.make(number), None)
        except Exception as error:  # noqa: BLE001 - the program raises it
            answer = _Answer(number, None, error)
        answers.send(answer)
    answers.send(None)


def _ending() -> list[signal.Signals]:
    """Signals that end a program."""
    return [signal.Signals[name] for name in _ENDING]


@contextmanager
def _held() -> Iterator[None]:
    """Context in which signals wait, so that none of them meets a process that has no handlers yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ending())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
