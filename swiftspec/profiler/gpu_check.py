"""What `scripts/gpu_check.sh` measures and concludes: `kernels` and `forward` write records, `gather` judges them all.

Standard library and torch only, so that a machine with nothing else can say what its kernels do.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["conclude", "gather", "main", "summary"]

SCHEMA, SCHEMA_VERSION = "swiftspec.gpu-check", 1
MOST_ERROR = 1e-2  # of bf16 against fp64
LEAST_OF_COPY = 0.75
MOST_OF_RIVAL = 1.02  # what two timings of the same differ by
MOST_ROUND_ERROR = 0.05

Record = Mapping[str, Any]
Criterion = dict[str, Any]


def conclude(records: Sequence[Record], report: Record | None) -> list[Criterion]:
    """Every criterion with what was wanted and found, and whether it holds; None where nothing was measured.

    Parameters
    ----------
    records : sequence
        Of `swiftspec.profiler.rivals`.
    report : mapping, optional
        What `swiftspec validate --json` writes.
    """
    products = [record for record in records if record["kind"] in ("product", "gate_up")]
    attention = [record for record in records if record["kind"] == "attention"]
    forwards = [record for record in records if record["kind"] == "forward" and record["shape"].startswith("bfloat16")]
    policies = report["policies"] if report else []
    return [
        _criterion("error against fp64", max, _field(records, "error"), "at most", MOST_ERROR),
        _criterion(
            "products' share of a copy's bandwidth", min, _field(products, "of_copy"), "at least", LEAST_OF_COPY
        ),
        _criterion("products' time over torch's", max, _over_rival(products), "at most", MOST_OF_RIVAL),
        _criterion("tree attention's time over torch's", max, _over_rival(attention), "below", 1.0),
        _criterion(
            "forward's share of a copy's bandwidth", min, _field(forwards, "of_copy"), "at least", LEAST_OF_COPY
        ),
        _criterion(
            "predicted round time against measured",
            max,
            [("round of " + policy["policy"], abs(policy["error"]["round_s"]["median"])) for policy in policies],
            "at most",
            MOST_ROUND_ERROR,
        ),
    ]


def gather(folder: Path, *, device: str, quick: bool) -> dict[str, Any]:
    """One document of what the stages left in a folder; a stage that failed left nothing but its exit code."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    records = [record for name in ("kernels", "forward", "forward-fp8") for record in found.get(name, [])]
    lines = (folder / "stages.tsv").read_text(encoding="utf-8").splitlines()
    stages = [dict(zip(("name", "limit_s", "seconds", "exit_code"), line.split("\t"), strict=True)) for line in lines]
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "dry_run": quick,
        "device": _device(device),
        "versions": {name: _version(name) for name in ("swiftspec-llm", "torch", "triton", "numpy")}
        | {"python": platform.python_version()},
        "stages": [stage | {key: int(stage[key]) for key in ("limit_s", "seconds", "exit_code")} for stage in stages],
        "criteria": conclude(records, found.get("validation")),
        "records": records,
        "sharing": found.get("sharing", []),
        "validation": found.get("validation"),
    }


def summary(document: Record) -> str:
    """Stages, criteria, records and ways to share a GPU, for people."""
    stages = [
        (stage["name"], f"{stage['seconds']} s of {stage['limit_s']}", _outcome(stage["exit_code"]))
        for stage in document["stages"]
    ]
    criteria = [
        (
            {True: "holds", False: "FAILS", None: "unknown"}[criterion["holds"]],
            criterion["name"],
            "-" if criterion["found"] is None else f"{criterion['found']:.3g}",
            f"{criterion['wanted']} {criterion['limit']:g}",
            criterion["where"] or "",
        )
        for criterion in document["criteria"]
    ]
    records = [
        (
            record["kind"],
            record["shape"],
            f"{record['median_s'] * 1e6:.1f} us",
            f"{record['low_s'] * 1e6:.1f} to {record['high_s'] * 1e6:.1f}",
            f"{record['bytes_per_s'] / 1e9:.0f} GB/s",
            f"{100 * record['of_copy']:.0f} %",
            f"torch {record['rival_s'] * 1e6:.1f} us" if "rival_s" in record else "",
            f"error {record['error']:.1e}" if "error" in record else "",
        )
        for record in document["records"]
    ]
    sharing = [
        (
            record["way"],
            f"{record['tokens_per_s']:.0f} tokens/s",
            f"round {record['round_s'] * 1e3:.3f} ms",
            f"{record['differing_outputs']} outputs differ",
        )
        for record in document["sharing"]
    ]
    head = f"{document['device']['name']}, {document['created_utc']}"
    head += "\nA dry run: its times, and what follows from them, say nothing." if document["dry_run"] else ""
    return "\n\n".join([head, *(_table(rows) for rows in (stages, criteria, records, sharing) if rows)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """A stage of the check."""
    parser = argparse.ArgumentParser(prog="python -m swiftspec.profiler.gpu_check")
    parser.add_argument("stage", choices=["kernels", "forward", "sharing", "gather"])
    parser.add_argument("folder", type=Path, help="where stages leave their records")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", default="bfloat16", help="of a forward")
    parser.add_argument("--inflate", help="of the bundled pair's target, which shares a device with its draft")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few samples")
    parser.add_argument("--out", type=Path, help="of what is gathered")
    options = parser.parse_args(arguments)
    if options.stage == "gather":
        document = gather(options.folder, device=options.device, quick=options.quick)
        _write(options.out, document)
        sys.stdout.write(summary(document))
        return 0
    if options.stage == "sharing":
        from swiftspec.documents import ModelRef
        from swiftspec.profiler.sharing import sharing_records

        dtype = "bfloat16" if options.device == "cuda" else "float32"
        target = ModelRef(model="demo/target", dtype=dtype, inflate=options.inflate)
        draft = ModelRef(model="demo/draft", dtype=dtype)
        _write(options.folder / "sharing.json", sharing_records(options.device, target=target, draft=draft))
        return 0
    from swiftspec.profiler.rivals import forward_record, kernel_records, shape_32b
    from swiftspec.profiler.stopwatch import Stopwatch

    brief: dict[str, Any] = {"repeats": 5, "warm_up_s": 0.0, "cached_bytes": 1 << 16} if options.quick else {}
    watch = Stopwatch(options.device, **brief)
    if options.stage == "kernels":
        _write(options.folder / "kernels.json", list(kernel_records(watch, quick=options.quick)))
    else:
        spec, context = shape_32b(quick=options.quick), 32 if options.quick else 500
        name = "forward" if options.dtype == "bfloat16" else f"forward-{options.dtype}"
        record = forward_record(watch, spec=spec, dtype=options.dtype, context=context)
        _write(options.folder / f"{name}.json", [record])
    return 0


def _criterion(
    name: str, worst: Callable[..., tuple[str, float]], found: Iterable[tuple[str, float]], wanted: str, limit: float
) -> Criterion:
    """The worst of named values decides; a NaN never passes."""
    values = list(found)
    where, value = next(
        ((where, value) for where, value in values if math.isnan(value)),
        worst(values, key=lambda pair: pair[1]) if values else ("", math.nan),
    )
    passes = {"at most": value <= limit, "at least": value >= limit, "below": value < limit}[wanted]
    return {
        "name": name,
        "wanted": wanted,
        "limit": limit,
        "found": None if math.isnan(value) else value,
        "where": where or None,
        "holds": passes if values else None,
    }


def _field(records: Iterable[Record], name: str) -> list[tuple[str, float]]:
    return [(f"{record['kind']} {record['shape']}", record[name]) for record in records if name in record]


def _over_rival(records: Iterable[Record]) -> list[tuple[str, float]]:
    return [(f"{record['kind']} {record['shape']}", record["median_s"] / record["rival_s"]) for record in records]


def _outcome(exit_code: int) -> str:
    return {0: "done", 124: "ran out of time", 137: "ran out of time"}.get(exit_code, f"failed ({exit_code})")


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _device(device: str) -> dict[str, str]:
    """Its name and its driver's version."""
    if device == "cpu":
        return {"name": platform.processor() or platform.machine(), "driver": "none"}
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        name, _, driver = lines[0].partition(", ")
    except (OSError, subprocess.CalledProcessError, IndexError):
        return {"name": "unknown: nvidia-smi did not say", "driver": "unknown"}
    return {"name": name, "driver": driver}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
