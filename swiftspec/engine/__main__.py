"""`python -m swiftspec.engine`: `swiftspec run`, as torchrun starts it, which wants a module: a process per rank."""

import sys

from swiftspec.cli.app import main
from swiftspec.cli.program import run_program

if __name__ == "__main__":
    sys.exit(run_program(lambda: main(["run", *sys.argv[1:]])))
