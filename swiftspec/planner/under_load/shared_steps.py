"""Seconds of steps that several requests share."""

import math

from swiftspec.artifacts.profile import Profile
from swiftspec.planner.search.bounds import StepTimes
from swiftspec.planner.search.option import Option
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase

__all__ = ["SharedSteps"]


class SharedSteps(StepTimes):
    """As `StepTimes`, of requests that share every step; what does not fit into a step is in the next one.

    Parameters
    ----------
    profile : Profile
    context : int
    sequences : int
        Requests.
    most_rows : int
        Of a step.
    """

    def __init__(self, profile: Profile, context: int, *, sequences: int, most_rows: int) -> None:
        super().__init__(profile, context)
        self._sequences, self._most_rows = sequences, most_rows

    def rows(self, policy: Policy) -> int:
        most = max(1, self._most_rows // self._sequences)
        return min(policy.target_rows, most) if policy.elastic else policy.target_rows

    def forward_s(self, option: Option, phase: Phase, role: Role, *, rows: int) -> float:
        steps = math.ceil(self._sequences * rows / self._most_rows)
        at_once = math.ceil(self._sequences / steps)
        one_s = super().forward_s(option, phase, role, rows=at_once * rows)
        further_s = 0.0
        if at_once > 1:
            further_s, _ = self._profile.latencies.further_sequence(
                role, degree=option.degree(role), ranks=option.num_ranks(role), peer_busy=False, context=self._context
            )
        half = 0.5 if phase in (Phase.EXIT, Phase.FINISH) else 1.0
        return steps * (one_s + (at_once - 1) * half * further_s)
