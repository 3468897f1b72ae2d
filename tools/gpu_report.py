"""Report of a run of `scripts/gpu_runs.sh`: run.json with all records and criteria, and summary.txt to read.

    python -m tools.gpu_report FOLDER --run 2

Uses the standard library only, so that it works even if a step failed because a package is missing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.checks.criterion import Criterion, at_least, at_most, below

SCHEMA, SCHEMA_VERSION = "swiftspec.gpu-run", 2
MOST_ERROR = 1e-2  # of bf16 against fp64
LEAST_OF_COPY = 0.75
MOST_OF_RIVAL = 1.02  # two timings of the same kernel differ by as much
MOST_ROUND_ERROR_PERCENT = 5
SKIPPED = 77  # the exit code of a step that does not apply here
_OUTCOMES = {0: "done", SKIPPED: "skipped", 124: "ran out of time", 137: "ran out of time"}
_STEP_NUMBERS = ("limit_s", "seconds", "exit_code", "new_cache_entries")  # columns of steps.tsv after the name
_TEST_OUTCOME = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_MOST_FAILURES = 20  # failed tests listed per step
_MOST_KERNELS = 12  # kernels of a forward listed in the summary

Record = Mapping[str, Any]


def conclude(records: Sequence[Record], report: Record | None) -> list[Criterion]:
    """Judge the measurements by every criterion.

    Parameters
    ----------
    records : sequence
        Written by `tools.gpu_steps`.
    report : mapping, optional
        Written by `swiftspec validate --json`.
    """
    products = [record for record in records if record["kind"] in ("product", "gate_up")]
    attention = [record for record in records if record["kind"] == "attention"]
    forwards = [record for record in records if record["kind"] == "forward" and _is_the_engines(record)]
    outputs = [
        (f"{record['policy']} in {record['dtype']}", record["differing_outputs"])
        for record in records
        if record["kind"] == "greedy" and record["dtype"] == "float32"
    ]
    rounds = [
        ("round of " + policy["policy"], 100 * abs(policy["error"]["round_s"]["median"]))
        for policy in (report["policies"] if report else ())
    ]
    return [
        at_most("error against fp64", _field(records, "error"), MOST_ERROR),
        at_most("greedy outputs that differ from the CPU's", outputs, 0),
        at_least("products' share of a copy's bandwidth", _field(products, "of_copy"), LEAST_OF_COPY),
        at_most("products' time over torch's", _over_rival(products), MOST_OF_RIVAL),
        below("tree attention's time over torch's", _over_rival(attention), 1),
        at_least("forward's share of a copy's bandwidth", _field(forwards, "of_copy"), LEAST_OF_COPY),
        at_most("predicted round time against measured", rounds, MOST_ROUND_ERROR_PERCENT, "%"),
    ]


def gather(folder: Path, *, run: int, dry_run: bool) -> dict[str, Any]:
    """Collect the results of the steps in a folder, finished or not, into one document.

    `records.jsonl` has one record per line; a line that is cut off is left out. `steps.tsv` has one step per line, and
    `NAME.log` is what the step printed.
    """
    records = list(_records(folder / "records.jsonl"))
    validation = _json(folder / "validation.json")
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run,
        "dry_run": dry_run,
        "environment": next((record for record in records if record["kind"] == "environment"), None),
        "steps": list(_steps(folder)),
        "criteria": [asdict(criterion) for criterion in conclude(records, validation)],
        "records": [record for record in records if record["kind"] != "environment"],
        "validation": validation,
    }


def summary(document: Record) -> str:
    """Steps, failed tests, criteria and records, as text in columns."""
    environment = document["environment"] or {"device": "unknown device", "commit": "unknown"}
    head = f"Run {document['run']} on {environment['device']}, {document['created_utc']}, at {environment['commit']}"
    if document["dry_run"]:
        head += "\nA dry run: its times, and all conclusions from them, are meaningless."
    steps = [
        (step["name"], f"{step['seconds']} s of {step['limit_s']}", _outcome(step["exit_code"]), _details(step))
        for step in document["steps"]
    ]
    failures = [(step["name"], failure) for step in document["steps"] for failure in step["failures"]]
    criteria = "\n".join(str(Criterion(**fields)) for fields in document["criteria"])
    kinds: dict[str, list[tuple[str, ...]]] = {}
    for record in document["records"]:
        kinds.setdefault(record["kind"], []).append(_row(record))
    before, after = ([_table(rows) for rows in groups if rows] for groups in ((steps, failures), kinds.values()))
    return "\n\n".join([head, *before, criteria, *after]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write run.json and summary.txt into the folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_report", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    document = gather(options.folder, run=options.run, dry_run=options.dry_run)
    (options.folder / "run.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (options.folder / "summary.txt").write_text(summary(document), encoding="utf-8")
    return 0


def _is_the_engines(record: Record) -> bool:
    """Whether it is a forward in bf16 with the products and launches that the engine would choose."""
    return bool(record["dtype"] == "bfloat16" and record["products"] == "tuned" and record["pdl"])


def _records(path: Path) -> Iterable[Record]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # its step was killed while it wrote


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _steps(folder: Path) -> Iterable[dict[str, Any]]:
    for line in (folder / "steps.tsv").read_text(encoding="utf-8").splitlines():
        name, *numbers = line.split("\t")
        counts, failures = _test_outcomes(folder / f"{name}.log")
        yield {"name": name, **dict(zip(_STEP_NUMBERS, map(int, numbers), strict=True))} | {
            "tests": dict(counts),
            "failures": failures,
        }


def _test_outcomes(log: Path) -> tuple[Counter[str], list[str]]:
    """Outcomes in a log of pytest -v, which prints each at once, so that those before a time-out are known."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ():
        outcome = _TEST_OUTCOME.search(line)
        test = re.search(r"tests/\S+::.*?(?=$| (?:PASSED|FAILED|ERROR|SKIPPED)\b)", line)
        if not outcome or not test or line.startswith(("FAILED", "ERROR", "SKIPPED")):
            continue  # pytest repeats failures in its last lines
        counts[outcome[1].lower()] += 1
        if outcome[1] in ("FAILED", "ERROR") and len(failures) < _MOST_FAILURES:
            failures.append(test[0])
    return counts, failures


def _details(step: Record) -> str:
    details = [f"{count} {outcome}" for outcome, count in step["tests"].items()]
    if step["new_cache_entries"]:
        details.append(f"{step['new_cache_entries']} new in Triton's cache")
    return ", ".join(details)


def _row(record: Record) -> tuple[str, ...]:
    """Cells of a record: the measurement's name, its time, then all other figures."""
    said = [str(record[name]) for name in ("kind", "shape", "way", "policy", "dtype", "products") if name in record]
    if "pdl" in record:
        said.append("pdl" if record["pdl"] else "no pdl")
    if "median_s" in record:
        spread = f" ({record['low_s'] * 1e6:.1f} to {record['high_s'] * 1e6:.1f})" if "low_s" in record else ""
        said.append(f"{record['median_s'] * 1e6:.1f} us{spread}")
    formats: dict[str, Callable[[Any], str]] = {
        "bytes_per_s": lambda value: f"{value / 1e9:.0f} GB/s",
        "flops_per_s": lambda value: f"{value / 1e12:.1f} TFLOP/s",
        "of_copy": lambda value: f"{100 * value:.0f} %",
        "rival_s": lambda value: f"rival {value * 1e6:.1f} us",
        "error": lambda value: f"error {value:.1e}",
        "logits_error": lambda value: f"logits' error {value:.1e}",
        "tokens_per_s": lambda value: f"{value:.0f} tokens/s",
        "round_s": lambda value: f"round {value * 1e3:.3f} ms",
        "differing_outputs": lambda value: f"{value} outputs differ",
        "choice": lambda value: f"{value['kernel_us']} us, rival {value['rival_us']:.1f} us, {value['config']}",
        "kernels": lambda value: ", ".join(f"{name} {us:.0f} us" for name, us in list(value.items())[:_MOST_KERNELS]),
    }
    return (*said, *(say(record[name]) for name, say in formats.items() if name in record))


def _field(records: Iterable[Record], name: str) -> list[tuple[str, float]]:
    return [(f"{record['kind']} {record['shape']}", record[name]) for record in records if name in record]


def _over_rival(records: Iterable[Record]) -> list[tuple[str, float]]:
    return [(f"{record['kind']} {record['shape']}", record["median_s"] / record["rival_s"]) for record in records]


def _outcome(exit_code: int) -> str:
    return _OUTCOMES.get(exit_code, f"failed ({exit_code})")


def _table(rows: Sequence[Sequence[str]]) -> str:
    columns = max(map(len, rows))
    filled = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in filled)


if __name__ == "__main__":
    sys.exit(main())
