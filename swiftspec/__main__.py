"""Entry point of `swiftspec` and `python -m swiftspec`: the command line, with its signals handled from the start."""

import sys

from swiftspec.cli.program import run_program

__all__ = ["program"]


def program() -> int:
    """Run the command line and return its exit code."""
    return run_program(_main)


def _main() -> int:
    from swiftspec.cli.app import main  # what takes a while, and may be interrupted

    return main()


if __name__ == "__main__":
    sys.exit(program())
