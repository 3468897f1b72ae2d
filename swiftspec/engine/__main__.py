"""`python -m swiftspec.engine`: `swiftspec run`, as torchrun starts it, which wants a module: a process per rank."""

import sys

from swiftspec.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
