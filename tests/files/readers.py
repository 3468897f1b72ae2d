"""Every reader by name, and a process that tries each file in a child of its own, with little memory and time.

`python -m tests.files.readers` reads lines of JSON, [reader, path], and answers each with an `Outcome`'s fields.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from swiftspec.acceptance.importing import from_server
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload
from swiftspec.costmodel.importing import read_rows
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.engine.model.weights.checkpoint import load_weights
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.spec import ModelSpec
from swiftspec.models.tenants import Adapter
from swiftspec.models.tokenizer import Tokenizer, read_vocabulary
from swiftspec.studies.tenants.tensors import read_header

MOST_BYTES = 300 << 20  # beyond what importing took
HANGS_AFTER_S = 20  # on a machine with other work; the wish is one

READERS: Mapping[str, Callable[[Path], object]] = {
    "plan": Plan.load,
    "profile": Profile.load,
    "report": Report.load,
    "trace": AcceptanceTrace.load,
    "workload": Workload.load,
    "op tables": OpTables.load,
    "prompts": read_prompts,
    "csv": lambda path: list(read_rows(path, {"name": str, "count": int, "seconds": float})),
    "config": lambda path: ModelSpec.from_directory(path.parent),
    "planned config": lambda path: read_spec(path.parent),
    "adapter": lambda path: Adapter.read(path.parent),
    "header": read_header,
    "tokenizer": lambda path: Tokenizer(path.parent),
    "vocabulary": lambda path: read_vocabulary(path.parent),
    "counts": from_server,
    "weights": lambda path: load_weights(path.parent, ModelSpec.from_directory(path.parent)),
}


class Outcome(NamedTuple):
    """Outcome of a reader: `accepted`, `refused` in a sentence, or `broken`; and its CPU seconds."""

    kind: str
    text: str
    cpu_s: float


def attempt(reader: str, path: Path) -> Outcome:
    """Read a file here and now."""
    start_s = time.process_time()
    try:
        READERS[reader](path)
        kind, text = "accepted", ""
    except ValueError as error:
        kind, text = "refused", str(error)
    except BaseException as error:  # noqa: BLE001 - the point is to see whatever comes
        kind, text = "broken", f"{type(error).__name__}: {error}"
    return Outcome(kind, text[:5000], time.process_time() - start_s)


def attempt_in_child(reader: str, path: Path) -> Outcome:
    """As `attempt`, in a child that ends where it asks for more memory, or never ends."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES,) * 2)
        signal.alarm(HANGS_AFTER_S)
        with os.fdopen(write, "w") as answer:
            json.dump(attempt(reader, path), answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return Outcome(*json.loads(text)) if text else Outcome("broken", f"wait status {status}", 0.0)


def main() -> None:
    np.lib.format.header_data_from_array_1_0(np.zeros(1))  # loads what it needs
    for line in sys.stdin:
        reader, path = json.loads(line)
        sys.stdout.write(json.dumps(attempt_in_child(reader, Path(path))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
