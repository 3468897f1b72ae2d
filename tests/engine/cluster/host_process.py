"""A host as a program: `python -m tests.engine.cluster.host_process ADDRESS PORT KEY SLOT`; KEY in hexadecimal."""

import sys

from swiftspec.engine.cluster.host import Host
from swiftspec.errors import EngineError

if __name__ == "__main__":
    address, port, key, slot = sys.argv[1:]
    try:
        Host((address, int(port)), bytes.fromhex(key), slot=int(slot), within_s=3.0).serve()
    except (EngineError, ValueError) as error:
        sys.exit(str(error))
