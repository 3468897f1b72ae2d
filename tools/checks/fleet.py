"""A planned fleet, served on this machine, against its promise.

On a quiet machine with a core for every device of the fleet. Every replica is an engine of its own on cores of its own;
all of them serve their share of the planned load at the same time. Criterion: as many requests keep their limits as the
plan asks for, with a tenth of tolerance on what may miss them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.load_report import LoadReport
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import path_of
from swiftspec.cli import console
from swiftspec.planner.fleet.choice import DEFAULT_PERCENTILE
from tools.checks.criterion import Criterion, at_least

_TOLERANCE = 0.1  # of the requests that may miss their limits


def check(plan: Annotated[Path, "of `swiftspec plan --fleet`, for this machine"], prompts: Path) -> Iterator[Criterion]:
    """Serve on all replicas at once, and judge the share of requests within their limits."""
    planned = Plan.load(plan)
    if planned.fleet is None or planned.under_load is None:
        raise ValueError(f"--plan is {plan}, which has no fleet")
    cores = sorted(os.sched_getaffinity(0))
    if planned.fleet.num_devices > len(cores):
        raise ValueError(
            f"--plan is {plan}, whose fleet has {planned.fleet.num_devices} devices; there are {len(cores)} cores"
        )
    load = path_of(planned.under_load.workload, plan)
    arguments = ["--plan", plan, "--load", load, "--prompts", prompts, "--policies", planned.chosen.policy]
    with tempfile.TemporaryDirectory() as folder:
        reports = _served(planned.fleet, list(map(str, arguments)), cores, Path(folder))
    yield _judged(planned.fleet, reports)


def _served(fleet: Fleet, arguments: Sequence[str], cores: Sequence[int], folder: Path) -> list[LoadReport]:
    """What every replica measured. ValueError if one failed."""
    width = fleet.chosen.num_devices
    running = []
    for number in range(fleet.num_replicas):
        out = folder / f"{number}.json"
        own = ",".join(map(str, cores[number * width : (number + 1) * width]))
        command = ["taskset", "-c", own, sys.executable, "-m", "swiftspec", "validate", *arguments, "--json", str(out)]
        running.append((out, subprocess.Popen(command, stdout=subprocess.DEVNULL)))
    codes = [process.wait() for _, process in running]
    if any(codes):
        raise ValueError("a replica failed; see above")
    return [LoadReport.load(out) for out, _ in running]


def _judged(fleet: Fleet, reports: Sequence[LoadReport]) -> Criterion:
    found, promised = [report.policies[0].measured for report in reports], fleet.point
    shares = [each.request_goodput / each.request_throughput for each in found]
    replicas = [
        (str(number), *_row(share, each.ttft_s.p95, each.tpot_s.p95, each.tpot_s.mean))
        for number, (share, each) in enumerate(zip(shares, found, strict=True), start=1)
    ]
    console.table(
        f"{fleet.num_replicas} replicas of {fleet.chosen.name} at {fleet.point.rate:.3g} requests/s each",
        ("replica", "within limits", "TTFT p95, ms", "TPOT p95, ms", "TPOT, ms"),
        [
            ("promised", *_row(promised.attained, promised.ttft_p95_s, promised.tpot_p95_s, promised.tpot_s)),
            *replicas,
        ],
    )
    asked = (fleet.goal.percentile or DEFAULT_PERCENTILE) / 100
    least = asked - _TOLERANCE * (1 - asked)
    return at_least("requests within their limits", 100 * sum(shares) / len(shares), 100 * least, "%")


def _row(share: float, *seconds: float) -> tuple[str, ...]:
    return (f"{share:.1%}", *(f"{1e3 * each:.2f}" for each in seconds))
