"""`plan --report` and `swiftspec report`: a plan as one HTML file, with ten simulated rounds of its choice."""

from pathlib import Path

import numpy as np

from swiftspec.artifacts.basis import read_profile, read_trace
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.timeline import Timeline
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, saved, write_json
from swiftspec.files.writing import write_output

__all__ = ["report", "typical_timeline", "write_page"]

_NUM_PROMPTS = 5
_MOST_TOKENS = 96
_NUM_ROUNDS = 10


def report(*, plan: Path, out: Path, json_path: Path | None = None) -> None:
    """Write the page of a plan that was saved, and say so."""
    check_outputs(inputs={"--plan": plan}, out=out, json=json_path)
    made = Plan.load(plan)
    write_page(out, made, profile=read_profile(made, plan), trace=read_trace(made, plan))
    console.say(saved(out))
    write_json(json_path, {"plan": str(plan), "report": str(out)})


def write_page(path: Path, plan: Plan, *, profile: Profile, trace: AcceptanceTrace) -> None:
    """The report of a plan; profile and trace are those that it was made from."""
    from swiftspec.reports.html import render

    timeline = typical_timeline(plan, profile=profile, trace=trace)
    write_output(path, render(plan, profile=profile, timeline=timeline).encode())


def typical_timeline(plan: Plan, *, profile: Profile, trace: AcceptanceTrace) -> Timeline:
    """The chosen candidate on that of a few prompts, spread over the trace, which is closest to the plan's TPOT.

    One with enough rounds to show, if there is any.
    """
    from swiftspec.simulator.driver import simulate

    num_prompts = len(trace.prompts)
    indices = np.linspace(0, num_prompts - 1, min(num_prompts, _NUM_PROMPTS)).round().astype(int)
    timelines = simulate(
        plan.chosen.build(),
        degrees={role: len(devices) for role, devices in plan.chosen.groups.items()},
        ranks=plan.chosen.ranks,
        profile=profile,
        trace=trace,
        prompt_indices=indices.tolist(),
        max_new_tokens=min(plan.max_new_tokens, _MOST_TOKENS),
    )
    expected_s = plan.chosen.prediction.metrics.tpot_s
    long = [timeline for timeline in timelines if len(timeline.verifications_s) > _NUM_ROUNDS]
    return min(long or timelines, key=lambda timeline: abs(timeline.tpot_s - expected_s))
