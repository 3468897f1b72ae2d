"""Entry point of `swiftspec` and `python -m swiftspec`: the command line, with its signals handled from the start."""

import os
import sys
from contextlib import suppress


def program() -> int:
    """Run the command line and return its exit code."""
    from swiftspec.cli.program import run_program

    return run_program(_main)


def _main() -> int:
    from swiftspec.cli.app import main  # what takes a while, and may be interrupted

    return main()


def _forget_current_folder() -> None:
    """Undo what `python -m` does: look for modules in the current folder first. Unless this package lies there."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with suppress(OSError):  # the current folder has been removed
        if sys.path[0] == os.getcwd() != folder:
            del sys.path[0]


if __name__ == "__main__":
    _forget_current_folder()  # before anything is imported that Python has not loaded yet
    sys.exit(program())
