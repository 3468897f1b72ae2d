"""The command line as a program: its signals, its child processes and its exit code."""

import atexit
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from swiftspec.engine.process.interrupts import ending_signals_raised, exit_code, was_interrupted
from swiftspec.interpreters import safe_path
from swiftspec.parent_death import adopt_orphans

_UNCOLLECTED = 300_000  # new objects between garbage collections; with Python's 700 they are a tenth of a start


def run_program(main: Callable[[], int]) -> int:
    """Run `main` and return its exit code, or that of the signal that ended it, even before `main` handles signals.

    Later signals are ignored: only the interpreter's own shutdown is left.
    """
    gc.set_threshold(_UNCOLLECTED)
    os.environ.update(safe_path())  # for every child, whoever starts it
    atexit.register(_leave)
    with suppress(OSError):  # kernels without this feature can do without
        adopt_orphans()  # workers whose fork server has died still learn when this program ends
    with ending_signals_raised(ignored_afterwards=True):
        try:
            code = main()
        except KeyboardInterrupt:
            code = exit_code()
        return code


def _leave() -> None:
    """After an interruption, end the process: the last exit handler to run, since it was registered first.

    Otherwise Python kills itself with SIGINT if a KeyboardInterrupt has passed through an `exec`, as in an import.
    """
    if was_interrupted():
        for file in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
                file.flush()
        os._exit(exit_code())
