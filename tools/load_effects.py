"""Effects of load, predicted and measured: `python -m tools.load_effects --plan PLAN --prompts F`.

On a quiet machine; about five minutes for the demo pair on two cores. Prints a table for each question:

- batching: time per token of autoregressive decoding by number of clients, and a + b clients fitted to it;
- gathering: what it gains that verifications of the disaggregated policy wait for each other;
- splits: which is faster for the same requests, the best co-located or the best disaggregated policy;
- prompts: what a long prompt does to those who decode meanwhile, by prompt rows of a step;
- preemptions: a cache for half of the requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from swiftspec.api.validating import LoadComparison, validate_load
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.load_report import PolicyLoad
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.policies import Layout
from swiftspec.reports.formatting import milliseconds, percent, signed_percent, speed
from swiftspec.timing.timeline import Timeline
from tools.checks.workloads import drawn, of_policy

_CLIENTS = (1, 2, 4, 8)
_FEW = 4  # requests at once, where splits are compared
_SHARES = (0.3, 0.6, 0.8)  # of the slower one's saturation
_PREFILL_ROWS = (8, 16, 32)


class _Machine:
    """A plan whose policies are measured on this machine."""

    def __init__(self, plan: Path, prompts: Path) -> None:
        self.planned = Planned.load(plan)
        self._prompts = prompts

    def best(self, layout: Layout) -> str:
        """The fastest candidate of a layout, for one request."""
        found = [each for each in self.planned.plan.candidates.values() if each.build().layout is layout]
        if not found:
            raise SystemExit(f"the plan has no {layout} policy")
        return min(found, key=lambda each: each.prediction.metrics.tpot_s).policy

    def serve(self, policy: str, workload: Workload, **options: Any) -> tuple[PolicyLoad, LoadComparison]:
        """Figures of a policy under a workload."""
        compared = validate_load(
            of_policy(self.planned, policy),
            workload,
            self._prompts,
            policies=[policy],
            options=LoadOptions(**options),
            stages=console.progress,
        )
        return compared.report.policies[0], compared


def _workload(
    arrivals: str, count: int, *, prompt_tokens: str = "fixed:16", output_tokens: str = "fixed:64"
) -> Workload:
    return drawn(arrivals, count, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def batching(machine: _Machine) -> None:
    """Closed loops of autoregressive decoding."""
    found = [
        machine.serve("autoregressive", _workload(f"closed:{clients}", 5 * clients + 11))[0] for clients in _CLIENTS
    ]
    tpots_s = np.array([load.measured.tpot_s.mean for load in found])
    slope_s, base_s = np.polyfit(_CLIENTS, tpots_s, 1)
    fitted_s = base_s + slope_s * np.array(_CLIENTS)
    one = found[0].measured.output_throughput
    console.table(
        f"Autoregressive, closed loops, prompts of 16 tokens, outputs of 64; TPOT = {milliseconds(base_s)} + "
        f"{milliseconds(slope_s)} x clients ms",
        ("clients", "TPOT predicted", "measured", "fitted", "error of the fit", "tokens/s", "times one client"),
        [
            (
                str(clients),
                milliseconds(load.predicted.tpot_s.mean),
                milliseconds(tpot_s),
                milliseconds(fit_s),
                signed_percent(fit_s / tpot_s - 1),
                speed(load.measured.output_throughput),
                f"{load.measured.output_throughput / one:.2f}",
            )
            for clients, load, tpot_s, fit_s in zip(_CLIENTS, found, tpots_s, fitted_s, strict=True)
        ],
    )


def gathering(machine: _Machine) -> None:
    """The disaggregated policy with and without a gather window."""
    policy = machine.best(Layout.DISAGGREGATED)
    workload = _workload(f"closed:{_FEW}", 40)
    with_it, without = (machine.serve(policy, workload, gather_s=gather_s)[0] for gather_s in (None, 0.0))
    rows = [
        (
            side,
            speed(gathered.output_throughput),
            speed(alone.output_throughput),
            signed_percent(gathered.output_throughput / alone.output_throughput - 1),
        )
        for side, gathered, alone in (
            ("predicted", with_it.predicted, without.predicted),
            ("measured", with_it.measured, without.measured),
        )
    ]
    title = f"{policy}, {_FEW} clients: tokens/s with the usual gather window, and without"
    console.table(title, ("", "gathered", "not", "gain"), rows)
    console.say(f"requests per step: {with_it.mean_batch:.2f} and {without.mean_batch:.2f}, measured")


def splits(machine: _Machine) -> None:
    """The same requests by the best policy of either layout."""
    names = [machine.best(Layout.COLOCATED), machine.best(Layout.DISAGGREGATED)]
    saturated = [machine.serve(name, _workload(f"closed:{_FEW}", 32), max_running=_FEW)[0] for name in names]
    slower = min(load.predicted.request_throughput for load in saturated)
    rows = []
    for share in _SHARES:
        workload = _workload(f"poisson:{share * slower:.4f}", 40)
        loads = [machine.serve(name, workload, max_running=_FEW)[0] for name in names]
        predicted, measured = (
            [getattr(load, side).e2el_s.mean for load in loads] for side in ("predicted", "measured")
        )
        agree = (predicted[0] < predicted[1]) == (measured[0] < measured[1])
        cells = [milliseconds(value) for pair in zip(predicted, measured, strict=True) for value in pair]
        rows.append((percent(share), *cells, "yes" if agree else "no"))
    columns = ("load", *(f"{name} {side}" for name in names for side in ("predicted", "measured")), "same order")
    console.table(f"Mean end-to-end time in ms, at most {_FEW} requests at once", columns, rows)


def prompts(machine: _Machine) -> None:
    """Four requests decode; a prompt of 20 chunks comes, and a short one directly behind it."""
    rows = []
    for prefill_rows in _PREFILL_ROWS:
        gaps_s, firsts_s = [], []
        for long_tokens in (16, 20 * prefill_rows):
            workload = _with_long_prompt(long_tokens)
            _, compared = machine.serve("autoregressive", workload, prefill_rows=prefill_rows)
            *decoding, _, short = compared.measured
            gaps_s.append(float(np.percentile([gap_s for each in decoding for gap_s in _gaps_s(each)], 99)))
            firsts_s.append(short.ttft_s)
        cells = [milliseconds(value) for value in (*gaps_s, *firsts_s)]
        ratios = [f"{after / before:.2f}" for before, after in (gaps_s, firsts_s)]
        rows.append((str(prefill_rows), *cells[:2], ratios[0], *cells[2:], ratios[1]))
    columns = ("prompt rows", "p99 gap without", "with", "times", "TTFT behind it without", "with", "times")
    console.table("A prompt of 20 chunks among four requests that decode, in ms, measured", columns, rows)


def _with_long_prompt(long_tokens: int) -> Workload:
    """Four requests at once, and half a second later one with a long prompt and one with a short one."""
    drawn = _workload("constant:1", 6, output_tokens="fixed:192")
    late = [
        drawn.requests[4].model_copy(update={"arrival_s": 0.3, "prompt_tokens": long_tokens, "output_tokens": 8}),
        drawn.requests[5].model_copy(update={"arrival_s": 0.301, "output_tokens": 8}),
    ]
    early = [each.model_copy(update={"arrival_s": 0.0}) for each in drawn.requests[:4]]
    return drawn.model_copy(update={"requests": (*early, *late)})


def _gaps_s(timeline: Timeline) -> list[float]:
    ends_s = [span.end_s for span in timeline.commits]
    return [after - before for before, after in pairwise(ends_s)]


def preemptions(machine: _Machine) -> None:
    """Six clients, and a cache that holds three of their longest requests."""
    rows = []
    for policy in ("autoregressive", machine.best(Layout.COLOCATED)):
        tree_rows = machine.planned.plan.candidates[policy].build().target_rows
        workload = _workload("closed:6", 48, prompt_tokens="fixed:48", output_tokens="fixed:80")
        num_blocks = 3 * -(-(128 + tree_rows) // 16)
        load, _ = machine.serve(policy, workload, max_running=6, num_blocks=num_blocks)
        sides = (load.predicted, load.measured)
        rows.append(
            (
                policy,
                str(num_blocks),
                *(str(side.num_preemptions) for side in sides),
                *(speed(side.output_throughput) for side in sides),
            )
        )
    columns = ("policy", "blocks", "preemptions predicted", "measured", "tokens/s predicted", "measured")
    console.table("Six clients, and a cache for three of their requests", columns, rows)


_QUESTIONS: dict[str, Callable[[_Machine], None]] = {
    question.__name__: question for question in (batching, gathering, splits, prompts, preemptions)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the questions that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--questions", nargs="+", choices=list(_QUESTIONS), default=list(_QUESTIONS))
    chosen = parser.parse_args(arguments)
    machine = _Machine(chosen.plan, chosen.prompts)
    for question in chosen.questions:
        _QUESTIONS[question](machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
