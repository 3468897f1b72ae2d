"""Transfer of Triton's cache of compiled kernels: packed on one machine, unpacked on another.

    python -m tools.kernel_cache pack FOLDER ARCHIVE
    python -m tools.kernel_cache unpack FOLDER ARCHIVE

The cache is keyed by contents, but each entry lists its files by absolute paths, so a plain copy would not work.
Uses the standard library only, since it runs before packages are installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

_GROUP = "__grp__*.json"  # an entry's list of files
_NEEDED = (".cubin", ".json")  # files that a launch reads; the others are stages of compilation


def pack(folder: Path, archive: Path) -> int:
    """Write the entries of a cache, without the files of compilation; return the number of kernels."""
    kernels = 0
    with tarfile.open(archive, "w:xz") as packed:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _NEEDED:
                kernels += path.suffix == ".cubin"
                packed.add(path, arcname=str(path.relative_to(folder)))
    return kernels


def unpack(folder: Path, archive: Path) -> int:
    """Add the entries to a cache, with their new paths; return the number of kernels in the cache."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        fresh = Path(place)
        with tarfile.open(archive) as packed:
            packed.extractall(fresh, filter="data")
        for path in fresh.rglob(_GROUP):
            names = json.loads(path.read_text(encoding="utf-8"))["child_paths"]
            here = folder / path.parent.relative_to(fresh)
            paths = {name: str(here / name) for name in names if (path.parent / name).exists()}
            path.write_text(json.dumps({"child_paths": paths}), encoding="utf-8")
        for entry in fresh.iterdir():
            if not (folder / entry.name).exists():
                entry.rename(folder / entry.name)
    return len(list(folder.rglob("*.cubin")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack or unpack a cache, and print how many kernels it holds."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_cache", description=main.__doc__)
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("archive", type=Path)
    options = parser.parse_args(arguments)
    kernels = {"pack": pack, "unpack": unpack}[options.what](options.folder.resolve(), options.archive)
    sys.stdout.write(f"{kernels} compiled kernels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
