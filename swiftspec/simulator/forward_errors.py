"""Known relative errors of a profile's forwards, and scale factors drawn from them.

Forwards composed of op tables are known to a few percent; those measured where they will run take as long as measured,
spread included. A search that takes composed forwards as exact prefers options that just fit, such as a whole number of
draft forwards into a verification. Averaging over the error removes the reward for such luck.

The errors, relative standard deviations, come from published measurements:

- `COMPOSED`: root mean square over sources of the errors, left out, of the forwards in `swiftspec study backtest`:
  steps of vLLM (vllm-scripts' logs), forwards of SwiftSpec and vLLM in int4 (SwiftSpec's tables).
  `studies/backtest/coverage.py` computes it, and a test compares.
- `SPARSE`: the same of loads of sparse models (NVIDIA, in aiconfigurator-core), each with constants that were fitted
  without its model. Some were measured with kernels, or a multi-token prediction, that the figures do not tell.
- `PASS`: of forwards that were measured on this machine in a single pass, beside the mean of many. Shared machines have
  slow spells of seconds, so a whole profile is measured in several passes, each on new processes; its error is taken
  as known. Five profiles of the demo's pair in one pass each, log 2026-11-29-search.
- `ROOFLINE`: error of rooflines, whose constants were fitted on H100 and H200, on a device that they were not fitted
  on: bf16 forwards on an A100, against those composed of its op tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, hypot, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from swiftspec.artifacts.profile import PASSES, Profile
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase

COMPOSED: Final = 0.039
SPARSE: Final = 0.25
ROOFLINE: Final = 0.2
PASS: Final = 0.02

_SPARSE_PARTS = frozenset({"experts", "absorbed", "recurrence"})  # which no dense forward has
_NORMAL = NormalDist()
# Steps of an additive recurrence whose points fill the square evenly: powers of the inverse plastic number.
_STEPS: Final[Mapping[Role, float]] = {Role.TARGET: 0.7548776662466927, Role.DRAFT: 0.5698402909980532}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardErrors:
    """Relative standard deviation of each role's forwards; a role that is not named is known exactly.

    All forwards of a role are scaled together, for all rows, phases and devices, because they are composed of the same
    figures.
    """

    of_role: Mapping[Role, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.of_role.values())

    @property
    def mirrors(self) -> tuple[bool, ...]:
        """Mirroring of the draws, for each simulation of a prompt: a single False if nothing is drawn, else a pair."""
        return (False, True) if self else (False,)

    def scales(self, *, seed: int, index: int, mirrored: bool = False) -> dict[Role, float]:
        """Factors of a prompt's forwards, log-normal with mean 1; empty if nothing is drawn.

        mirrored: longer forwards become shorter, and vice versa.
        """
        if not self:
            return {}
        sign = -1.0 if mirrored else 1.0
        shifts = np.random.default_rng([seed, len(_STEPS)]).random(len(_STEPS)).tolist()
        found = {}
        for (role, step), shift in zip(_STEPS.items(), shifts, strict=True):
            place = min(max((shift + (index + 1) * step) % 1.0, 1e-9), 1 - 1e-9)  # even over a trace's prompts
            error = self.of_role.get(role, 0.0)
            found[role] = exp(sign * _NORMAL.inv_cdf(place) * error - error**2 / 2)
        return found


EXACT: Final = ForwardErrors()


def forward_errors(profile: Profile) -> ForwardErrors:
    """Errors of a profile's forwards: none where they were measured at length, those of the fit if on a server.

    A role's rooflines add their own error, weighted by their share of its time.
    """
    return ForwardErrors(of_role={role: _error_of(profile, role) for role in Role})


def _error_of(profile: Profile, role: Role) -> float:
    if profile.served is not None:
        return profile.served.step_error
    total_s = unknown_s = 0.0
    for step in profile.steps:
        if step.role is not role or step.phase is Phase.PREFILL:
            continue
        if not step.parts:
            return PASS * sqrt(max(0.0, 1 / profile.passes - 1 / PASSES)) if profile.passes else 0.0
        total_s += sum(part.seconds for part in step.parts)
        unknown_s += sum(part.seconds for part in step.parts if part.provenance is Provenance.ROOFLINE)
    is_sparse = any(part.name in _SPARSE_PARTS for step in profile.steps if step.role is role for part in step.parts)
    composed = SPARSE if is_sparse else COMPOSED
    return hypot(composed, ROOFLINE * unknown_s / total_s) if total_s else 0.0
