"""Every draft length of a plan's policies, measured under several loads on the engine that the plan is for.

    python -m tools.sweep --plan plan.json --prompts validate.jsonl --python vllm-env/bin/python \\
        --loads w1.json w4.json w8.json --lengths 1,2,3,4,6,8 --out sweep.json

This is what a sweep by hand does: a server for every method and length, and each load sent to each. All predictions are
written first. Then it says how far off they were, and what the plan's choice costs beside the best that was measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

from swiftspec.api.validating_served import compared, server_of
from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.artifacts.load_report import PolicyLoad
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.cli.served import engine_here
from swiftspec.reports.formatting import percent, signed_percent
from swiftspec.validation.served import ServedPrediction

_LENGTH = "num_draft_tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plan", type=Path, required=True, help="on the profile of a server")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `prompt`")
    parser.add_argument("--python", help="of the engine's environment")
    parser.add_argument("--loads", type=Path, nargs="+", required=True, help="workloads")
    parser.add_argument("--lengths", default="1,2,3,4,5,6,7,8", help="draft tokens")
    parser.add_argument("--policies", default="all", help="names of the plan's")
    parser.add_argument("--out", type=Path, required=True, help="results, JSON")
    asked = parser.parse_args()
    planned = Planned.load(asked.plan)
    loads = {path.stem: Workload.load(path) for path in asked.loads}
    lengths = [int(length) for length in asked.lengths.split(",")]
    candidates = list(_candidates(planned, lengths, asked.policies.split(",")))
    runs = {
        (each.describe(), name): _run(planned, each, workload)
        for each in candidates
        for name, workload in loads.items()
    }
    predicted = frozen(runs, asked.out.with_suffix(".predicted.json"))
    show(_measure(planned, candidates, loads, predicted, asked))


def frozen(runs: Mapping[tuple[str, str], ServedPrediction], path: Path) -> dict[tuple[str, str], LoadMetrics]:
    """Predictions of candidates under loads, written before anything is measured."""
    predicted = {names: run.metrics() for names, run in runs.items()}
    text = json.dumps({f"{who} {name}": found.model_dump() for (who, name), found in predicted.items()})
    path.write_text(text)
    console.say(f"{len(predicted)} predictions, SHA-256 {sha256(text.encode()).hexdigest()}")
    return predicted


def _candidates(planned: Planned, lengths: Sequence[int], names: Sequence[str]) -> Iterator[Candidate]:
    """Each policy of the plan with every length; those without one as they are."""
    for each in (planned.plan.chosen, *planned.plan.alternatives):
        if "all" not in names and each.policy not in names:
            continue
        if _LENGTH not in each.shape:
            yield each
            continue
        for length in lengths:
            yield each.model_copy(update={"shape": each.shape | {_LENGTH: length}})


def _run(planned: Planned, candidate: Candidate, workload: Workload) -> ServedPrediction:
    return ServedPrediction(planned=planned, candidate=candidate, workload=workload, seed=0)


def _measure(
    planned: Planned,
    candidates: Sequence[Candidate],
    loads: Mapping[str, Workload],
    predicted: Mapping[tuple[str, str], LoadMetrics],
    asked: Any,
) -> dict[tuple[str, str], PolicyLoad]:
    """All cells, written after each server."""
    served = planned.profile.served
    assert served is not None, "a plan on the profile of a server"
    here = engine_here(served.engine, device=planned.profile.device, python=asked.python, options=served.options)
    found: dict[tuple[str, str], PolicyLoad] = {}
    spent_s = {"starts": 0.0, "loads": 0.0}
    for candidate in candidates:
        who, began_s = candidate.describe(), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            first = _run(planned, candidate, next(iter(loads.values())))
            with server_of(first, here, folder=Path(folder), stages=console.progress) as server:
                spent_s["starts"] += time.monotonic() - began_s
                for name, workload in loads.items():
                    began_s = time.monotonic()
                    run = _run(planned, candidate, workload)
                    cell = compared(run, server, asked.prompts, predicted[who, name], stages=console.progress)
                    found[who, name] = cell
                    spent_s["loads"] += time.monotonic() - began_s
                    tpot = cell.error.tpot
                    console.say(f"{who} under {name}: TPOT {signed_percent(tpot)}, steps x {cell.time_factor:.2f}")
        results = {
            "predictions_sha256": sha256(asked.out.with_suffix(".predicted.json").read_bytes()).hexdigest(),
            "seconds": spent_s,
            "profile_minutes": served.minutes,
            "cells": {f"{who} | {name}": cell.model_dump() for (who, name), cell in found.items()},
        }
        asked.out.write_text(json.dumps(results))
    return found


def show(measured: Mapping[tuple[str, str], PolicyLoad]) -> None:
    """Print errors, and what the predicted choice costs."""
    rows = []
    for (who, name), cell in measured.items():
        errors = (cell.error, cell.retimed_error, cell.retraced_error)
        rows.append(
            (
                who,
                name,
                f"{1e3 * cell.measured.tpot_s.mean:.1f}",
                *(signed_percent(error.tpot) if error else "" for error in errors),
                *(signed_percent(error.e2el) if error else "" for error in errors),
                f"{cell.predicted.tokens_per_round:.2f}",
                f"{cell.measured.tokens_per_round:.2f}",
            )
        )
    again = ("TPOT error", "re-timed", "re-traced", "E2E error", "re-timed", "re-traced")
    columns = ("candidate", "load", "TPOT ms", *again, "tokens per round", "measured")
    console.table("Predicted against measured", columns, rows, num_text_columns=2)
    for figure in ("tpot", "e2el"):
        for label, of in (("", "error"), (" re-timed", "retimed_error"), (" re-traced", "retraced_error")):
            found = [abs(getattr(getattr(cell, of), figure)) for cell in measured.values() if getattr(cell, of)]
            console.paragraph(f"{figure}{label}: {percent(median(found))} in the median, {percent(max(found))} at most")
    _show_regrets(measured)


def _show_regrets(measured: Mapping[tuple[str, str], PolicyLoad]) -> None:
    """What the predicted best of each load takes longer than the measured best: of all, and of each policy's.

    Once as measured, and once with each measured time divided by what the machine's pace made of it.
    """
    groups: dict[tuple[str, str], list[PolicyLoad]] = defaultdict(list)
    for (_, name), cell in measured.items():
        groups[name, "all"].append(cell)
        groups[name, cell.policy].append(cell)
    rows = []
    for (name, policy), cells in groups.items():
        if len(cells) < 2:
            continue
        chosen = min(cells, key=lambda cell: cell.predicted.e2el_s.mean)
        best = min(cells, key=_at_usual_pace)
        regret = chosen.measured.e2el_s.mean / min(cell.measured.e2el_s.mean for cell in cells) - 1
        at_usual_pace = _at_usual_pace(chosen) / _at_usual_pace(best) - 1
        rows.append((name, policy, chosen.candidate, best.candidate, percent(regret), percent(at_usual_pace)))
    columns = ("load", "of", "predicted best", "best at one pace", "regret", "at one pace")
    console.table("Choices", columns, rows, num_text_columns=4)


def _at_usual_pace(cell: PolicyLoad) -> float:
    return cell.measured.e2el_s.mean / (cell.time_factor or 1.0)


if __name__ == "__main__":
    main()
