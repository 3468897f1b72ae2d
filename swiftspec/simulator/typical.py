"""The timeline shown for a plan: that of a typical prompt, in simulated time."""

import numpy as np

from swiftspec.artifacts.planned import Planned
from swiftspec.simulator.driver import simulate
from swiftspec.timing.timeline import Timeline

__all__ = ["typical_timeline"]

_NUM_PROMPTS = 5
_MOST_TOKENS = 96
_NUM_ROUNDS = 10


def typical_timeline(planned: Planned) -> Timeline:
    """The chosen candidate on the prompt, of a few spread over the trace, whose TPOT is closest to the plan's.

    Prefers prompts with enough rounds to show, if there are any.
    """
    chosen, num_prompts = planned.plan.chosen, len(planned.trace.prompts)
    indices = np.linspace(0, num_prompts - 1, min(num_prompts, _NUM_PROMPTS)).round().astype(int)
    timelines = simulate(
        chosen.build(),
        degrees={role: len(devices) for role, devices in chosen.groups.items()},
        ranks=chosen.ranks,
        profile=planned.profile,
        trace=planned.trace,
        prompt_indices=indices.tolist(),
        max_new_tokens=min(planned.plan.max_new_tokens, _MOST_TOKENS),
    )
    expected_s = chosen.prediction.metrics.tpot_s
    long = [timeline for timeline in timelines if len(timeline.verifications_s) > _NUM_ROUNDS]
    return min(long or timelines, key=lambda timeline: abs(timeline.tpot_s - expected_s))
