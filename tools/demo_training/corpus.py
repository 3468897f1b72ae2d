"""The bundled pair's training text: CPython's own standard library, whole modules held out. No torch here."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Never seen in training, not even by the tokenizer. Small, ordinary modules on different subjects, so that the held-out
# loss and every bundled prompt are about code that the pair has not read.
HELD_OUT_MODULES = (
    "bisect",
    "calendar",
    "cmd",
    "colorsys",
    "csv",
    "fractions",
    "graphlib",
    "heapq",
    "imghdr",
    "netrc",
    "pprint",
    "queue",
    "sched",
    "shlex",
    "statistics",
    "tabnanny",
    "textwrap",
    "timeit",
    "wave",
    "zipapp",
)
# Generated tables, test data and installed packages teach nothing about code.
_EXCLUDED_DIRS = frozenset({"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"})


def _sources() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _EXCLUDED_DIRS.isdisjoint(relative.parts[:-1]):
            yield relative.as_posix(), path.read_text(encoding="utf-8", errors="ignore")


def _is_held_out(relative: str) -> bool:
    return relative.removesuffix(".py") in HELD_OUT_MODULES


def training_sources() -> Iterator[tuple[str, str]]:
    """(relative path, text) of every module the pair learns from, in a fixed order."""
    return ((name, text) for name, text in _sources() if not _is_held_out(name))


def held_out_sources() -> Iterator[tuple[str, str]]:
    """(relative path, text) of every held-out module, in a fixed order."""
    return ((name, text) for name, text in _sources() if _is_held_out(name))
