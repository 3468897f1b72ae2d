"""The first process of a group, before it becomes the program that leads it: it asks to end when this program does.

Only a process itself can ask, and code of this one may not run between fork and exec where other threads run.
"""

import os
import signal
import sys
from contextlib import suppress

from swiftspec.parent_death import signal_on_parent_death


def main() -> None:
    """Become the program of the command line, which is: the parent's process id, the program, its arguments."""
    parent, *command = sys.argv[1:]
    with suppress(OSError):  # a kernel without it
        # Not SIGKILL: a server that is asked to end takes its workers with it.
        signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before that
        return
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and a program inherits what is ignored
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]} cannot be run ({error.strerror})")
