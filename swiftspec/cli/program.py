"""The command line as a program of its own: its signals, its descendants and its exit code."""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from swiftspec.engine.process.interrupts import ending_signals_raised, exit_code, was_interrupted
from swiftspec.engine.process.parent_death import adopt_orphans

__all__ = ["run_program"]


def run_program(main: Callable[[], int]) -> int:
    """What `main` returns; the exit code of the signal that ended it, also before it has looked after signals itself.

    Signals that come after that are ignored: what is left is the interpreter's own end.
    """
    atexit.register(_leave)
    with suppress(OSError):  # a kernel that cannot do without
        adopt_orphans()  # workers whose fork server has died are still told when this program ends
    with ending_signals_raised(ignored_afterwards=True):
        try:
            code = main()
        except KeyboardInterrupt:
            code = exit_code()
        if was_interrupted() and "swiftspec.planner.backends" in sys.modules:
            sys.modules["swiftspec.planner.backends"].end_workers()
        return code


def _leave() -> None:
    """After an interruption, leave here: the last of what happens at exit, as it was registered first.

    Python would kill itself with SIGINT where a KeyboardInterrupt has once passed through an `exec`, as in an import.
    """
    if was_interrupted():
        for file in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
                file.flush()
        os._exit(exit_code())
