"""Figures of a few simulated rounds of every policy. `python -m tools.pictures docs/policies`

Latencies and acceptance are those recorded for the demo; shapes are the planner's best on that machine.
"""

import argparse
from pathlib import Path

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import POLICIES, Layout, make_policy
from swiftspec.policies.effects import Role

__all__ = ["draw"]

RECORDED = Path(__file__).resolve().parents[1] / "profiles/demo-zen4-2-cores"
PROMPT_INDEX = 40
NUM_ROUNDS = 5
NUM_CORES = 2
# The planner's best shapes on that machine of policies that are younger than the recorded plan.
SHAPES: dict[str, dict[str, float]] = {
    "suffix_decoding": {"verify_rows": 16, "branches": 3, "max_spec_factor": 4.0},
    "suffix_or_draft": {"num_draft_tokens": 4, "least_score": 5.0, "verify_rows": 16, "max_spec_factor": 4.0},
}


def draw(directory: Path) -> None:
    """A picture for each policy, `<policy>.svg`."""
    from swiftspec.reports.figures import save_figure, timeline_rounds
    from swiftspec.simulator.driver import simulate

    plan = Plan.load(RECORDED / "plan.json")
    profile, trace = Profile.load(RECORDED / plan.profile.path), AcceptanceTrace.load(RECORDED / plan.trace.path)
    for name, cls in POLICIES.items():
        if candidate := plan.candidates.get(name):
            policy, title = candidate.build(), candidate.describe()
            degrees = {role: len(devices) for role, devices in candidate.groups.items()}
        elif cls.layout is Layout.DISAGGREGATED:  # one core for each group, more than were recorded
            policy, title = cls(), f"{name} {cls().target_groups}+1"
            degrees = {Role.TARGET: policy.target_groups, Role.DRAFT: 1}
        else:
            policy, degrees = make_policy(name, **SHAPES.get(name, {})), {Role.TARGET: NUM_CORES}
            title = f"{name} {NUM_CORES}"
        (timeline,) = simulate(policy, degrees=degrees, profile=profile, trace=trace, prompt_indices=[PROMPT_INDEX])
        figure = timeline_rounds(timeline, num_rounds=NUM_ROUNDS)
        figure.axes[0].set_title(title, fontsize="medium")
        save_figure(directory / f"{name}.svg", figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    draw(parser.parse_args().directory)


if __name__ == "__main__":
    main()
