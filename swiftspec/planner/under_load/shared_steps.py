"""Seconds of steps that several requests share."""

import math

from swiftspec.artifacts.profile import Profile
from swiftspec.planner.search.bounds import StepTimes
from swiftspec.planner.search.option import Option
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepKey
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
        key = StepKey(role, phase, option.degree(role), rows, self._context, at_once, option.num_ranks(role))
        further_s, _ = self._profile.latencies.further_sequences(key)
        return steps * (one_s + further_s)
