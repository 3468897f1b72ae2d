"""The command line as a program of its own: its signals, its descendants and its exit code."""

from collections.abc import Callable
from contextlib import suppress

from swiftspec.engine.interrupts import ending_signals_raised, exit_code
from swiftspec.engine.parent_death import adopt_orphans

__all__ = ["run_program"]


def run_program(main: Callable[[], int]) -> int:
    """What `main` returns; the exit code of the signal that ended it, also before it has looked after signals itself.

    Signals that come after that are ignored: what is left is the interpreter's own end.
    """
    with suppress(OSError):  # a kernel that cannot do without
        adopt_orphans()  # workers whose fork server has died are still told when this program ends
    with ending_signals_raised(ignored_afterwards=True):
        try:
            return main()
        except KeyboardInterrupt:
            return exit_code()
