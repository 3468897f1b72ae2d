"""Known errors of a prediction's inputs, before any comparison with a measurement."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.plan import Acceptance
from swiftspec.artifacts.profile import Profile
from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import EXACT, ForwardErrors, forward_errors
from swiftspec.timing.latency import Provenance

__all__ = ["NO_ERRORS", "PUBLISHED_ACCEPTANCE", "KnownErrors", "known_errors"]

# Root mean square over sources of the errors of tokens per round in `swiftspec study backtest`: SwiftSpec's tables,
# vLLM's chains, SpecInfer's and Sequoia's trees. `studies/backtest/coverage.py` computes it.
PUBLISHED_ACCEPTANCE: Final = 0.046


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownErrors:
    """Relative standard deviations.

    forwards: of each role's forwards. acceptance: of the tokens per round; None where it is unknown, as for a pair that
    is planned with a proxy pair.
    """

    forwards: ForwardErrors = EXACT
    acceptance: float | None = 0.0

    @property
    def of_forwards(self) -> npt.NDArray[np.float64]:
        """Errors of forwards in the order of `Role`."""
        return np.array([self.forwards.of_role.get(role, 0.0) for role in Role])

    @property
    def by_name(self) -> dict[str, float | None]:
        """Errors for the plan: non-zero or unknown ones only."""
        named = {f"{role} forwards": self.forwards.of_role.get(role, 0.0) for role in Role}
        return {name: error for name, error in (*named.items(), ("acceptance", self.acceptance)) if error != 0.0}


NO_ERRORS: Final = KnownErrors()


def known_errors(profile: Profile, acceptance: Acceptance | None) -> KnownErrors:
    """The errors of a plan's inputs; recorded acceptance has none except the spread over its prompts."""
    known: dict[Provenance, float] = {Provenance.MEASURED: 0.0, Provenance.PUBLISHED: PUBLISHED_ACCEPTANCE}
    of_acceptance = known.get(acceptance.provenance) if acceptance else 0.0
    return KnownErrors(forwards=forward_errors(profile), acceptance=of_acceptance)
