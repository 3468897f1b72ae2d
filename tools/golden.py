"""Figures of plans of one request and of published results, to be compared after a change: `python -m tools.golden`.

    python -m tools.golden --out before.json
    python -m tools.golden --compare before.json

The second one prints each figure that is another one now. Takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import swiftspec
from swiftspec.studies.backtest.run import run as run_backtest


class _Asked(NamedTuple):
    """A plan of one request."""

    target: str
    draft: str
    device: str
    num_devices: int
    quant: str


ASKED = (
    _Asked("llama-3-70b", "llama-3.2-3b", "h800-sxm", 8, "int4"),
    _Asked("llama-3.3-70b", "llama-3.2-1b", "h100-sxm", 4, "fp8"),
    _Asked("llama-3.3-70b", "eagle3", "h100-sxm", 2, "fp8"),
    _Asked("qwen3-32b", "qwen3-0.6b", "l40s", 4, "fp8"),
    _Asked("deepseek-v3", "mtp", "h200-sxm", 8, "fp8"),
    _Asked("qwen3.5-27b", "mtp", "h200-sxm", 2, "fp8"),
    _Asked("gpt-oss-120b", "eagle3", "h100-sxm", 4, "mxfp4"),
)
Figures = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures")
    parser.add_argument("--compare", type=Path, help="print what has changed since; exit code 1 if anything has")
    chosen = parser.parse_args(arguments)
    found = dict(figures())
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    if chosen.compare is None:
        return 0
    changes = list(changed(json.loads(chosen.compare.read_text(encoding="utf-8")), found))
    for line in changes:
        print(line)
    print(f"{len(found)} figures, {len(changes)} changed")
    return 1 if changes else 0


def figures() -> Iterator[tuple[str, Any]]:
    """Every figure by its name."""
    for asked in ASKED:
        yield from _plan_figures(asked)
    backtest = run_backtest(num_jobs=-1, done=_ignore)
    for section in backtest.sections:
        for number, row in enumerate(section.rows):
            yield f"{section.title} {number}: {row.name}, {row.quantity}", row.predicted


def _plan_figures(asked: _Asked) -> Iterator[tuple[str, Any]]:
    name = " ".join(map(str, asked))
    deployment = swiftspec.Deployment(device=asked.device, num_devices=asked.num_devices, quant=asked.quant)
    try:
        everything = swiftspec.SearchOptions(policy="all")  # also those that a plan leaves out by default
        plan = swiftspec.plan(asked.target, asked.draft, deployment=deployment, options=everything).plan
    except ValueError as error:
        yield f"{name}: refused", str(error)
        return
    yield f"{name}: chosen", plan.chosen.describe()
    for policy, candidate in plan.candidates.items():
        yield f"{name}: {policy}", candidate.describe()
        yield f"{name}: {policy}, tokens/s", candidate.prediction.metrics.figures.tokens_per_s
    for reason, count in plan.rejected.items():
        yield f"{name}: rejected, {reason}", count


def _ignore(_number: int, _count: int, _what: str, /) -> None:
    pass


def changed(before: Figures, after: Figures) -> Iterator[str]:
    """A line for each figure that is another one, is new, or has gone."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield f"{name}: {old} -> {new}"


if __name__ == "__main__":
    sys.exit(main())
