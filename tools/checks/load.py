"""Predictions under load against measurements.

On a quiet machine; a minute for each policy of the demo pair. Every policy first serves a closed loop of 8 clients: its
saturation, predicted and measured. Then it serves Poisson arrivals at 30, 60 and 80 % of the predicted saturation. The
reports stay in WORK, and a load whose report exists is not repeated. Criteria:

- at each Poisson load, in the median over policies: mean TPOT and E2E within 10 %, mean TTFT within 20 %; re-timed,
  TPOT and E2E within 5 %;
- saturation within 10 % in the median.

With `--http`, every policy is served by `swiftspec serve`, and the loads are sent over HTTP: what clients see is
compared with the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from swiftspec.api.validating import validate_load
from swiftspec.artifacts.load_report import LoadReport, PolicyLoad
from swiftspec.artifacts.planned import Planned
from swiftspec.cli import console
from swiftspec.reports.formatting import percent, signed_percent
from tools.checks.criterion import Criterion, at_most
from tools.checks.workloads import drawn, of_policy
from tools.served import served

_POLICIES = ("autoregressive", "prompt_lookup", "serial_chain", "serial_tree", "swiftspec", "pearl")
_CLIENTS = 8
_KEPT = ("--set", "keep_timelines=1000")  # by the server, for re-timing
_SHARES = (0.3, 0.6, 0.8)
_FIELDS = ("ttft", "tpot", "e2el", "output_throughput")
# In percent.
_WITHIN = {"ttft": 20, "tpot": 10, "e2el": 10}
_RETIMED_WITHIN = {"tpot": 5, "e2el": 5}
_SATURATION_WITHIN = 10


def check(
    plan: Path,
    prompts: Path,
    work: Annotated[Path, "folder for the reports, kept between runs"],
    policies: tuple[str, ...] = _POLICIES,
    requests: Annotated[int, "of each load"] = 60,
    http: Annotated[bool, "send the loads to a server"] = False,
) -> Iterator[Criterion]:
    """Serve every load, and judge the errors."""
    work.mkdir(parents=True, exist_ok=True)
    planned = Planned.load(plan)
    alone = {policy: of_policy(planned, policy) for policy in policies}
    loads = {}
    for policy, own in alone.items():
        with ExitStack() as stack:
            url = None
            if http:
                server = served(plan, "--policy", policy, *_KEPT, log=work / f"{policy}.log")
                url = stack.enter_context(server).url
            of_one = _Loads(planned=own, prompts=prompts, work=work, num_requests=requests, url=url)
            loads[policy] = list(of_one.serve())
    _show(loads)
    yield from _criteria(loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loads:
    """Loads that a plan's only policy serves: in this process, or by the server at `url`."""

    planned: Planned
    prompts: Path
    work: Path
    num_requests: int
    url: str | None

    def serve(self) -> Iterator[PolicyLoad]:
        """The closed loop, then the open ones."""
        closed = self._load("closed", f"closed:{_CLIENTS}")
        yield closed
        for share in _SHARES:
            yield self._load(f"{share:.1f}", f"poisson:{share * closed.predicted.request_throughput:.4f}")

    def _load(self, name: str, arrivals: str) -> PolicyLoad:
        policy = self.planned.plan.chosen.policy
        path = self.work / f"{policy}-{name}.json"
        if not path.exists():
            workload = drawn(arrivals, self.num_requests, prompt_tokens="uniform:16:96", output_tokens="uniform:32:96")
            compared = validate_load(
                self.planned,
                workload,
                self.prompts,
                policies=[policy],
                url=self.url,
                stages=console.progress,
            )
            compared.report.save(path)
        return LoadReport.load(path).policies[0]


def _show(loads: Mapping[str, list[PolicyLoad]]) -> None:
    columns = ("policy", "load", "TTFT", "TPOT", "E2E", "tokens/s", "TPOT re-timed", "E2E re-timed", "batch")
    rows = []
    for policy, own in loads.items():
        for name, load in zip(("closed", *map(percent, _SHARES)), own, strict=True):
            again = load.retimed_error
            cells = [signed_percent(getattr(load.error, field)) for field in _FIELDS]
            cells += [signed_percent(again.tpot), signed_percent(again.e2el)] if again else ["", ""]
            batch = "" if load.mean_batch is None else f"{load.mean_batch:.1f}"
            rows.append((policy if name == "closed" else "", name, *cells, batch))
    console.table("Errors of predicted means: predicted over measured, minus 1", columns, rows, num_text_columns=2)


def _criteria(loads: Mapping[str, list[PolicyLoad]]) -> Iterator[Criterion]:
    saturations = [abs(own[0].error.output_throughput) for own in loads.values()]
    yield at_most("saturation, tokens/s, in the median", 100 * median(saturations), _SATURATION_WITHIN, "%")
    for index, share in enumerate(_SHARES, start=1):
        at = [own[index] for own in loads.values()]
        for field, within in _WITHIN.items():
            found = median(abs(getattr(load.error, field)) for load in at)
            yield at_most(f"{percent(share)} of saturation, {field} in the median", 100 * found, within, "%")
        for field, within in _RETIMED_WITHIN.items():
            errors = [abs(getattr(load.retimed_error, field)) for load in at if load.retimed_error]
            if errors:
                name = f"{percent(share)} of saturation, {field} re-timed, in the median"
                yield at_most(name, 100 * median(errors), within, "%")
