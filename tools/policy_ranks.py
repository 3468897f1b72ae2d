"""How close every policy's best comes to the best plan: recorded plans, pairs with every kind of draft, and loads.

    python -m tools.policy_ranks --json ranks.json

A policy that is never within 5 % of the best is not worth its share of a search (`Policy.searched`).
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import swiftspec
from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths
from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.policies import policy_names
from swiftspec.workload import make_workload

PROFILES = Path(swiftspec.__file__).parent / "profiles"
NEAR = 0.95  # of the best plan's tokens/s, or of its goodput or the inverse of its end-to-end time under a load
# Target, draft, device, number of devices, format.
CASES = (
    ("llama-3-70b", "llama-3.2-3b", "h800", 8, "int4"),
    ("llama-3.3-70b", "llama-3.2-1b", "h100", 8, "fp8"),
    ("llama-3.3-70b", "pard:llama-3.2-1b", "h100", 8, "fp8"),
    ("llama-3.3-70b", "eagle3", "h200", 4, "fp8"),
    ("llama-3-8b", "llama-3.2-1b", "l40s", 2, "bf16"),
    ("qwen2-72b", "qwen2-0.5b", "h800", 8, "int4"),
    ("qwen3-32b", "qwen3-0.6b", "h100", 2, "bf16"),
    ("qwen3-14b", "eagle3", "b200", 2, "bf16"),
    ("qwen3.5-27b", "mtp", "h200", 2, "fp8"),
    ("deepseek-v3", "mtp", "h200", 8, "fp8"),
)
# Target, draft, device, number of devices, format, arrivals, and limits on TTFT and TPOT in seconds.
LOADS = (
    ("llama-3-70b", "llama-3.2-1b", "h800", 8, "bf16", "poisson:14", (0.5, 0.015)),
    ("llama-3.3-70b", "llama-3.2-1b", "h100", 8, "fp8", "closed:16", None),
    ("llama-3.3-70b", "llama-3.2-1b", "h100", 8, "fp8", "poisson:4", (0.5, 0.008)),
    ("qwen3-32b", "qwen3-0.6b", "h100", 2, "bf16", "closed:4", None),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write every share")
    chosen = parser.parse_args()
    everything = swiftspec.SearchOptions(policy="all")
    plans = {f"recorded {path.parent.name}": Plan.load(path) for path in sorted(PROFILES.glob("*/plan.json"))}
    for target, draft, device, num_devices, quant in CASES:
        deployment = swiftspec.Deployment(device=device, num_devices=num_devices, quant=quant)
        name = f"{target} {draft} {num_devices} {device} {quant}"
        with console.progress(name):
            plans[name] = swiftspec.plan(target, draft, deployment=deployment, options=everything).plan
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    scores = {
        name: {each: plan.candidates[each].prediction.metrics.figures.tokens_per_s for each in plan.candidates}
        for name, plan in plans.items()
    }
    for *case, arrivals, limits in LOADS:
        scores[f"{' '.join(map(str, case))} {arrivals}"] = under_load(case, arrivals, limits)
    for name, found in scores.items():
        for policy, score in found.items():
            shares[policy][name] = score / max(found.values())
    rows = []
    for policy in sorted(policy_names(), key=lambda policy: -max(shares[policy].values(), default=0.0)):
        known = shares[policy]
        nearest = max(known, key=lambda name: known[name], default="")
        near = sum(share >= NEAR for share in known.values())
        rows.append((policy, f"{known.get(nearest, 0):.3f}", f"{near} of {len(known)}", nearest))
    console.table(
        f"Share of the best plan's tokens/s, or of its goodput or speed under load, over {len(scores)} plans",
        ("policy", "at most", f"from {NEAR:.0%} on", "nearest in"),
        rows,
        last_is_text=True,
    )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(shares, indent=1) + "\n", encoding="utf-8")


def under_load(case: Sequence[Any], arrivals: str, limits: tuple[float, float] | None) -> dict[str, float]:
    """Goodput of every policy under a load, or without limits the inverse of its mean end-to-end time."""
    target, draft, device, num_devices, quant = case
    workload = make_workload(
        Arrivals.parse(arrivals, field="arrivals"),
        num_requests=160,
        prompt_tokens=Lengths(distribution=Distribution.LOGNORMAL, mean=150, cv=0.5),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=96),
    )
    ttft_s, tpot_s = limits or (None, None)
    with console.progress(f"{target} {arrivals}"):
        plan = swiftspec.plan(
            target,
            draft,
            deployment=swiftspec.Deployment(device=device, num_devices=num_devices, quant=quant),
            options=swiftspec.SearchOptions(policy="all", goal=swiftspec.Goal(ttft_s=ttft_s, tpot_s=tpot_s)),
            workload=workload,
        ).plan
    assert plan.under_load is not None
    found = plan.under_load.predictions.items()
    if limits is None:
        return {policy: 1 / prediction.metrics.e2el_s.mean for policy, prediction in found}
    return {policy: prediction.metrics.request_goodput for policy, prediction in found}


if __name__ == "__main__":
    main()
