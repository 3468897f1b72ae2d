"""Check predictions under load: `python -m tools.check_load --plan PLAN --prompts F --work DIR`.

On a quiet machine; about a minute for each policy of the demo pair on two cores. Every policy first serves a closed
loop of 8 clients: its saturation, predicted and measured. Then it serves Poisson arrivals at 30, 60 and 80 % of the
predicted saturation. The reports stay in DIR, and a load whose report exists is not repeated. Exit code 1 if a
criterion is missed:

- at each Poisson load, in the median over policies: mean TPOT and E2E within 10 %, mean TTFT within 20 %; re-timed,
  TPOT and E2E within 5 %;
- saturation within 10 % in the median.

With `--http`, every policy is served by `swiftspec serve`, and the loads are sent over HTTP: what clients see is
compared with the simulation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from swiftspec.api.validating_load import validate_load
from swiftspec.artifacts.load_report import LoadReport, PolicyLoad
from swiftspec.artifacts.planned import Planned
from swiftspec.cli import console
from swiftspec.cli.app import main as swiftspec
from swiftspec.reports.formatting import percent, signed_percent
from tools.served import served

__all__ = ["main", "of_policy"]

_CLIENTS = 8
_KEPT = ("--set", "keep_timelines=1000")  # by the server, for re-timing
_SHARES = (0.3, 0.6, 0.8)
_LENGTHS = ("--prompt-tokens", "uniform:16:96", "--output-tokens", "uniform:32:96")
_FIELDS = ("ttft", "tpot", "e2el", "output_throughput")
_WITHIN = {"ttft": 0.20, "tpot": 0.10, "e2el": 0.10}
_RETIMED_WITHIN = {"tpot": 0.05, "e2el": 0.05}
_SATURATION_WITHIN = 0.10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for the files, kept between runs")
    parser.add_argument("--policies", default="autoregressive,prompt_lookup,serial_chain,serial_tree,swiftspec,pearl")
    parser.add_argument("--requests", type=int, default=60, help="of each load (default: 60)")
    parser.add_argument("--http", action="store_true", help="send the loads to a server")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    loads = {name: list(_loads(chosen, name)) for name in chosen.policies.split(",")}
    _show(loads)
    return 0 if all([*_held(loads)]) else 1


def _loads(chosen: argparse.Namespace, policy: str) -> Iterator[PolicyLoad]:
    """The closed loop, then the open ones."""
    with ExitStack() as stack:
        url = None
        if chosen.http:
            log = chosen.work / f"{policy}.log"
            _, url = stack.enter_context(served(chosen.plan, "--policy", policy, *_KEPT, log=log))
        closed = _load(chosen, policy, "closed", f"closed:{_CLIENTS}", url)
        yield closed
        for share in _SHARES:
            rate = share * closed.predicted.request_throughput
            yield _load(chosen, policy, f"{share:.1f}", f"poisson:{rate:.4f}", url)


def _load(chosen: argparse.Namespace, policy: str, name: str, arrivals: str, url: str | None) -> PolicyLoad:
    report = chosen.work / f"{policy}-{name}.json"
    if not report.exists():
        workload = chosen.work / f"{policy}-{name}.workload.json"
        drawn = ("--arrivals", arrivals, "--requests", str(chosen.requests), *_LENGTHS, "--out", str(workload))
        if swiftspec(["workload", *drawn]):
            raise SystemExit(2)
        only = of_policy(Planned.load(chosen.plan), policy)
        compared = validate_load(only, workload, chosen.prompts, policies=[policy], url=url, stages=console.progress)
        compared.report.save(report)
    return LoadReport.load(report).policies[0]


def of_policy(planned: Planned, policy: str) -> Planned:
    """A plan of one of its policies alone."""
    only = planned.plan.model_copy(update={"chosen": planned.plan.candidates[policy], "alternatives": ()})
    return Planned(plan=only, profile=planned.profile, trace=planned.trace)


def _show(loads: dict[str, list[PolicyLoad]]) -> None:
    columns = ("policy", "load", "TTFT", "TPOT", "E2E", "tokens/s", "TPOT re-timed", "E2E re-timed", "batch")
    rows = []
    for policy, of_policy in loads.items():
        for name, load in zip(("closed", *map(percent, _SHARES)), of_policy, strict=True):
            again = load.retimed_error
            cells = [signed_percent(getattr(load.error, field)) for field in _FIELDS]
            cells += [signed_percent(again.tpot), signed_percent(again.e2el)] if again else ["", ""]
            rows.append(
                (
                    policy if name == "closed" else "",
                    name,
                    *cells,
                    "" if load.mean_batch is None else f"{load.mean_batch:.1f}",
                )
            )
    console.table("Errors of predicted means: predicted over measured, minus 1", columns, rows, num_text_columns=2)


def _held(loads: dict[str, list[PolicyLoad]]) -> Iterator[bool]:
    yield _says(
        "saturation, tokens/s",
        median(abs(of_policy[0].error.output_throughput) for of_policy in loads.values()),
        _SATURATION_WITHIN,
    )
    for index, share in enumerate(_SHARES, start=1):
        at = [of_policy[index] for of_policy in loads.values()]
        for field, within in _WITHIN.items():
            found = median(abs(getattr(load.error, field)) for load in at)
            yield _says(f"{percent(share)} of saturation, {field}", found, within)
        for field, within in _RETIMED_WITHIN.items():
            errors = [abs(getattr(load.retimed_error, field)) for load in at if load.retimed_error]
            if errors:
                yield _says(f"{percent(share)} of saturation, {field} re-timed", median(errors), within)


def _says(what: str, found: float, within: float) -> bool:
    held = found <= within
    console.say(f"{'held' if held else 'missed'}: {what}: {percent(found)} in the median (limit {percent(within)})")
    return held


if __name__ == "__main__":
    sys.exit(main())
