"""Error of replayed rounds under load, against simulations that grow every tree: `python -m tools.replay_error --plan`.

Prints the table of docs/log/2026-11-26-recorded-rounds.md: mean TTFT, TPOT and end-to-end time and throughput of the
simulation in full, and the relative errors of the replay of the same requests. Only the first of them are recorded.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from swiftspec.api.inputs import read_plan
from swiftspec.api.serving import LoadOptions, simulate_load
from swiftspec.artifacts.load_metrics import RECORDED_ROUNDS, LoadMetrics
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.workload import Arrivals, Lengths, make_workload

POLICIES = ("autoregressive", "serial_chain", "serial_tree", "swiftspec", "amusd", "pearl")
HEADINGS = ("policy", "requests/s", "TTFT ms", "TPOT ms", "E2E ms", "tokens/s", "TTFT", "TPOT", "E2E", "tokens/s")


def figures(metrics: LoadMetrics) -> tuple[float, float, float, float]:
    """Mean TTFT, TPOT and end-to-end time in ms, and output tokens/s."""
    return (
        metrics.ttft_s.mean * 1e3,
        metrics.tpot_s.mean * 1e3,
        metrics.e2el_s.mean * 1e3,
        metrics.output_throughput,
    )


def row(planned: Planned, workload: Workload, policy: str, rate: float, seed: int) -> list[str]:
    """Figures of a policy in full, and the replay's relative errors."""
    full, replayed = (
        simulate_load(planned, workload, policy=policy, options=LoadOptions(replay=replay), seed=seed)
        for replay in (False, True)
    )
    right = figures(full.metrics)
    errors = [replay / value - 1 for replay, value in zip(figures(replayed.metrics), right, strict=True)]
    name = policy if replayed.num_replayed or replayed.method == RECORDED_ROUNDS else f"{policy} (not replayed)"
    return [name, f"{rate:g}", *(f"{value:.1f}" for value in right), *(f"{error:+.1%}" for error in errors)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as Markdown, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--rates", nargs="+", type=float, default=(1.0, 4.0), help="requests/s, Poisson")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    planned = read_plan(options.plan)
    prompt_tokens = Lengths.model_validate({"distribution": "lognormal", "mean": 300, "cv": 0.5})
    output_tokens = Lengths.model_validate({"distribution": "fixed", "tokens": 128})
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for policy in options.policies:
        for rate in options.rates:
            workload = make_workload(
                Arrivals.model_validate({"process": "poisson", "rate": rate}),
                num_requests=options.requests,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                seed=options.seed,
            )
            print(f"| {' | '.join(row(planned, workload, policy, rate, options.seed))} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
