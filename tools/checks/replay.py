"""Replayed rounds under load, against simulations that grow every tree.

Mean TTFT, TPOT and end-to-end time and throughput of the simulation in full, and the relative errors of the replay of
the same requests, of which only the first are recorded. Criterion: no mean is off by more than 5 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from swiftspec.api.inputs import read_plan
from swiftspec.api.planning import simulate_load
from swiftspec.artifacts.load_metrics import RECORDED_ROUNDS, LoadMetrics
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.cli import console
from swiftspec.reports.formatting import signed_percent
from tools.checks.criterion import Criterion, at_most
from tools.checks.workloads import drawn

_MOST_ERROR_PERCENT = 5
_FIGURES = ("TTFT", "TPOT", "E2E", "tokens/s")
_COLUMNS = ("policy", "requests/s", "TTFT ms", "TPOT ms", "E2E ms", "tokens/s", *_FIGURES)


def check(
    plan: Path,
    policies: tuple[str, ...] = ("autoregressive", "serial_chain", "serial_tree", "swiftspec", "amusd", "pearl"),
    rates: Annotated[tuple[float, ...], "requests/s, Poisson"] = (1.0, 4.0),
    requests: int = 400,
    seed: int = 0,
) -> Iterator[Criterion]:
    """Simulate every policy at every rate twice, and judge the worst error."""
    planned = read_plan(plan)
    rows, worst = [], []
    for policy in policies:
        for rate in rates:
            workload = drawn(
                f"poisson:{rate}", requests, prompt_tokens="lognormal:300:0.5", output_tokens="fixed:128", seed=seed
            )
            full, replayed = (
                simulate_load(planned, workload, policy=policy, options=LoadOptions(replay=replay), seed=seed)
                for replay in (False, True)
            )
            right = _figures(full.metrics)
            errors = [found / value - 1 for found, value in zip(_figures(replayed.metrics), right, strict=True)]
            is_replayed = replayed.num_replayed or replayed.method == RECORDED_ROUNDS
            name = policy if is_replayed else f"{policy} (not replayed)"
            rows.append((name, f"{rate:g}", *(f"{value:.1f}" for value in right), *map(signed_percent, errors)))
            worst += [
                (f"{figure} of {policy} at {rate:g}/s", 100 * abs(error))
                for figure, error in zip(_FIGURES, errors, strict=True)
            ]
    console.table(f"In full, and the replay's errors: {requests} requests", _COLUMNS, rows)
    yield at_most("error of a replayed mean", worst, _MOST_ERROR_PERCENT, "%")


def _figures(metrics: LoadMetrics) -> tuple[float, ...]:
    """Mean TTFT, TPOT and end-to-end time in ms, and output tokens/s."""
    times_s = (metrics.ttft_s.mean, metrics.tpot_s.mean, metrics.e2el_s.mean)
    return *(1e3 * each for each in times_s), metrics.output_throughput
