"""Figures of a few simulated rounds of every policy. `python -m tools.pictures docs/policies`

Latencies and acceptance are those recorded for the demo; shapes are the planner's best on that machine. Policies for a
parallel draft or a head have the bundled one's acceptance, recorded here on the same text, the latencies of the bundled
serial draft, and the shapes that they come with.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.policies import POLICIES, DraftKind, Layout, make_policy
from swiftspec.policies.effects import Role

RECORDED = Path(__file__).resolve().parents[1] / "profiles/demo-zen4-2-cores"
PROMPT_INDEX = 40
NUM_ROUNDS = 5
NUM_CORES = 2
OTHER_DRAFTS = {DraftKind.PARALLEL: "demo/parallel_draft", DraftKind.HEAD: "demo/head"}
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
    one = replace(trace, prompts=(trace.prompts[PROMPT_INDEX],))
    others = {kind: with_draft(name, one) for kind, name in OTHER_DRAFTS.items()}
    for name, cls in POLICIES.items():
        if DraftKind.SERIAL in cls.drafts:
            drawn, index = trace, PROMPT_INDEX
        else:
            drawn, index = next(others[kind] for kind in others if kind in cls.drafts), 0
        if candidate := plan.candidates.get(name):
            policy, title = candidate.build(), candidate.describe()
            degrees = {role: len(devices) for role, devices in candidate.groups.items()}
        elif cls.layout is not Layout.DISAGGREGATED:
            policy, title = make_policy(name, **SHAPES.get(name, {})), f"{name} {NUM_CORES}"
            degrees = {Role.TARGET: NUM_CORES}
        else:  # one core for each group, which may be more than were recorded
            policy, title = cls(), f"{name} {cls().target_groups}+1"
            degrees = {Role.TARGET: policy.target_groups, Role.DRAFT: 1}
        (timeline,) = simulate(policy, degrees=degrees, profile=profile, trace=drawn, prompt_indices=[index])
        figure = timeline_rounds(timeline, num_rounds=NUM_ROUNDS)
        figure.axes[0].set_title(title, fontsize="medium")
        save_figure(directory / f"{name}.svg", figure)


def with_draft(draft: str, trace: AcceptanceTrace) -> AcceptanceTrace:
    """A bundled draft's guesses of the same text."""
    from swiftspec.profiler.acceptance import record_trace

    return record_trace(
        target=ModelRef(model="demo/target", dtype="float32"),
        draft=ModelRef(model=draft, dtype="float32"),
        prompts=[(prompt.prompt_id, tuple(prompt.prompt_tokens.tolist())) for prompt in trace.prompts],
        outputs=[prompt.target_tokens.tolist() for prompt in trace.prompts],
        max_new_tokens=max(len(prompt.target_tokens) for prompt in trace.prompts),
        num_candidates=8,
        num_threads=1,
        progress=lambda *_: None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    draw(parser.parse_args().directory)


if __name__ == "__main__":
    main()
