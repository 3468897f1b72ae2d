"""How close every policy's best comes to the best plan: on recorded plans, and on deployments with every kind of draft.

    python -m tools.policy_ranks --json ranks.json

A policy that is never within 5 % of the best is not worth its share of a search (`Policy.searched`).
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import swiftspec
from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.policies import policy_names

__all__ = ["main"]

PROFILES = Path(swiftspec.__file__).parent / "profiles"
NEAR = 0.95  # of the best plan's tokens/s
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
    for name, plan in plans.items():
        found = {each: plan.candidates[each].prediction.metrics.figures.tokens_per_s for each in plan.candidates}
        for policy, speed in found.items():
            shares[policy][name] = speed / max(found.values())
    rows = []
    for policy in sorted(policy_names(), key=lambda policy: -max(shares[policy].values(), default=0.0)):
        known = shares[policy]
        nearest = max(known, key=lambda name: known[name], default="")
        near = sum(share >= NEAR for share in known.values())
        rows.append((policy, f"{known.get(nearest, 0):.3f}", f"{near} of {len(known)}", nearest))
    console.table(
        f"Share of the best plan's tokens/s, over {len(plans)} plans",
        ("policy", "at most", f"from {NEAR:.0%} on", "nearest in"),
        rows,
        last_is_text=True,
    )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(shares, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
