"""Check a planned fleet on this machine: `python -m tools.check_fleet --plan fleet.json --prompts F`.

On a quiet machine with a core for every device of the fleet. Every replica is an engine of its own on cores of its own;
all of them serve their share of the planned load at the same time. Exit code 1 if fewer requests keep their limits than
the plan asks for, with a tenth of tolerance on what may miss them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from swiftspec.artifacts.basis import path_of
from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.load_report import LoadReport
from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.planner.fleet.choice import DEFAULT_PERCENTILE

__all__ = ["main"]

_TOLERANCE = 0.1  # of the requests that may miss their limits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True, help="of `swiftspec plan --fleet`, for this machine")
    parser.add_argument("--prompts", type=Path, required=True)
    chosen = parser.parse_args()
    plan = Plan.load(chosen.plan)
    if plan.fleet is None or plan.under_load is None:
        parser.error(f"--plan is {chosen.plan}, which has no fleet")
    cores = sorted(os.sched_getaffinity(0))
    if plan.fleet.num_devices > len(cores):
        parser.error(f"the fleet has {plan.fleet.num_devices} devices; there are {len(cores)} cores")
    with tempfile.TemporaryDirectory() as folder:
        reports = _served(plan, plan.fleet, chosen.plan, chosen.prompts, cores, Path(folder))
    return _compared(plan.fleet, reports)


def _served(plan: Plan, fleet: Fleet, path: Path, prompts: Path, cores: list[int], folder: Path) -> list[LoadReport]:
    """What every replica measured. SystemExit if one failed."""
    assert plan.under_load is not None
    width = fleet.chosen.num_devices
    running = []
    for number in range(fleet.num_replicas):
        out = folder / f"{number}.json"
        arguments = ["--plan", path, "--load", path_of(plan.under_load.workload, path), "--prompts", prompts]
        arguments += ["--policies", plan.chosen.policy, "--json", out]
        own = ",".join(map(str, cores[number * width : (number + 1) * width]))
        command = ["taskset", "-c", own, sys.executable, "-m", "swiftspec", "validate", *map(str, arguments)]
        running.append((out, subprocess.Popen(command, stdout=subprocess.DEVNULL)))
    codes = [process.wait() for _, process in running]
    if any(codes):
        raise SystemExit("a replica failed")
    return [LoadReport.load(out) for out, _ in running]


def _compared(fleet: Fleet, reports: list[LoadReport]) -> int:
    found, promised = [report.policies[0].measured for report in reports], fleet.point
    shares = [each.request_goodput / each.request_throughput for each in found]
    console.table(
        f"{fleet.num_replicas} replicas of {fleet.chosen.name} at {fleet.point.rate:.3g} requests/s each",
        ("replica", "within limits", "TTFT p95, ms", "TPOT p95, ms", "TPOT, ms"),
        [
            (
                "promised",
                *_row(promised.attained, promised.ttft_p95_s, promised.tpot_p95_s, promised.tpot_s),
            ),
            *(
                (str(number), *_row(share, each.ttft_s.p95, each.tpot_s.p95, each.tpot_s.mean))
                for number, (share, each) in enumerate(zip(shares, found, strict=True), start=1)
            ),
        ],
    )
    asked = (fleet.goal.percentile or DEFAULT_PERCENTILE) / 100
    least = asked - _TOLERANCE * (1 - asked)
    mean = sum(shares) / len(shares)
    held = mean >= least
    console.say(f"{'held' if held else 'missed'}: {mean:.1%} of the requests keep their limits (at least {least:.1%})")
    return 0 if held else 1


def _row(share: float, *seconds: float) -> tuple[str, ...]:
    return (f"{share:.1%}", *(f"{1e3 * each:.2f}" for each in seconds))


if __name__ == "__main__":
    sys.exit(main())
