"""Faults of all kinds, one after another: `python -m tests.engine.campaign --faults 300 --seed 0 --out campaign.json`.

Half of them befall an engine in this process, half a `swiftspec run`: fork server, launcher, target, draft, or two of
them are killed, stopped or told to end, the channel's file is removed, nonsense is said on it; at start-up, between
requests, or in the middle of one. It exits with 1 unless, each time,

- the output is the target's own, or, where the target or the launcher ends, the beginning of it, with the exit code
  that docs/machines.md promises;
- nothing hangs: for more than 5 s no token comes, or what was to end does not (a process that is stopped for a while is
  not counted, nor is the time to load an engine);
- no process, folder or file descriptor is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.engine.campaign_cli import CommandLine
from tests.engine.campaign_engine import RunningEngine
from tests.engine.campaign_record import HANG_S, Record, World


def campaign(directory: Path, *, num_faults: int, seed: int, say: bool = False) -> list[Record]:
    """So many faults, half of them in each world. `directory` is TMPDIR meanwhile."""
    rng = random.Random(seed)
    scratch = directory / "tmp"
    scratch.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    records: list[Record] = []
    try:
        for kind, share in ((RunningEngine, (num_faults + 1) // 2), (CommandLine, num_faults // 2)):
            world: World = kind(directory / kind.__name__, scratch, rng)
            for number in range(share):
                record = world.suffer()
                records.append(record)
                if say:
                    print(f"{kind.__name__} {number + 1} of {share}: {record}", flush=True)
            records += world.close()
    finally:
        tempfile.tempdir = before
    return records


def summary(records: Sequence[Record]) -> str:
    """A table: a line for each kind of fault, and what went wrong below it."""
    kinds: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        kinds[record.world, record.fault].append(record)
    head: tuple[str, ...] = ("world", "fault", "n", "ok", "losses", "longest gap", "longest end", "ended with")
    lines = [head]
    for (world, fault), some in sorted(kinds.items()):
        ends = ", ".join(sorted({record.ending for record in some}))
        numbers = (len(some), sum(record.is_ok for record in some), sum(record.losses for record in some))
        gap_s, end_s = max(record.gap_s for record in some), max(record.end_s for record in some)
        lines.append((world, fault, *map(str, numbers), f"{gap_s:.2f} s", f"{end_s:.2f} s", ends))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    wrong = [f"WRONG: {record}" for record in records if not record.is_ok]
    total = (
        f"{len(records)} faults, {len(records) - len(wrong)} as they should be; a hang is {HANG_S:g} s without a token"
    )
    return "\n".join((*table, *wrong, total))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("campaign.json"), help="every fault, and what came of it")
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        records = campaign(Path(folder), num_faults=options.faults, seed=options.seed, say=True)
    result = {
        "faults": len(records),
        "ok": sum(record.is_ok for record in records),
        "seed": options.seed,
        "seconds": round(time.monotonic() - began_s, 1),
        "cores": len(os.sched_getaffinity(0)),
        "records": [record.as_json() for record in records],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(summary(records), flush=True)
    print(f"{result['seconds']} s, seed {options.seed}; every fault is in {options.out}", flush=True)
    return 0 if result["ok"] == len(records) else 1


if __name__ == "__main__":
    sys.exit(main())
