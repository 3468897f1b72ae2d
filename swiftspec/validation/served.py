"""Predictions of a load on an engine's server, again with the acceptance and the step times that the server had."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.workload import Workload
from swiftspec.planner.under_load.measured_engine import MeasuredEngine
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.planner.under_load.rounds import Round
from swiftspec.policies import Layout
from swiftspec.simulator.setup import Setup

_DRAWN = 2048  # rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """What a server counted: steps of requests after their first tokens, those with drafts, and drafted tokens.

    by_position: accepted tokens by place in the round.
    """

    steps: float
    drafts: float
    drafted: float
    by_position: Sequence[float]

    @property
    def survival(self) -> tuple[float, ...]:
        """Shares of the drafts of which at least 1, 2, .. tokens were accepted."""
        return tuple(min(1.0, count / self.drafts) for count in self.by_position) if self.drafts else ()

    def rounds(self, *, levels: int, seed: int) -> list[Round]:
        """Rounds as these, each by itself. levels: draft forwards of a round."""
        if not self.drafts:
            return [Round((), 1, 1)]
        rng = np.random.default_rng(seed)
        rows = 1 + round(self.drafted / self.drafts)
        evenly = (np.arange(_DRAWN) + 0.5) / _DRAWN  # so that few rounds have the mean of many
        accepted = rng.permutation(np.searchsorted(1.0 - np.array(self.survival), evenly, side="right"))
        drafts = rng.permutation(evenly < self.drafts / max(self.steps, self.drafts))
        return [
            Round((1,) * levels, rows, 1 + count) if has_draft else Round((1,) * levels, 1, 1)
            for count, has_draft in zip(accepted.tolist(), drafts.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPrediction:
    """Predictions of a policy's load on the server of a plan's profile."""

    planned: Planned
    candidate: Candidate
    workload: Workload
    seed: int

    @property
    def levels(self) -> int:
        """Draft forwards of a round on the target's devices."""
        policy = self.candidate.build()
        return policy.draft_levels if policy.layout is Layout.COLOCATED else 0

    def metrics(self, *, time_factor: float = 1.0, counts: DraftCounts | None = None) -> LoadMetrics:
        """Figures of the load.

        time_factor: of all steps. counts: the acceptance, in place of the trace's, where rounds do not depend on the
        load.
        """
        given = None if counts is None else counts.rounds(levels=self.levels, seed=self.seed)
        predictor = self._predictor(_slower(self.planned.profile, time_factor), given)
        served = predictor.serve(
            Setup.of(self.candidate),
            self.workload,
            goal=Goal(classes=self.workload.classes),
            options=LoadOptions().on(self.planned.profile.device),
        )
        return served.metrics

    def survival(self) -> tuple[float, ...]:
        """Shares of the traced rounds with drafts that have at least 1, 2, .. accepted tokens.

        None of a draft server's, whose rounds depend on the load.
        """
        if self.candidate.build().layout is Layout.DISAGGREGATED:
            return ()
        predictor = self._predictor(self.planned.profile, None)
        recorded = predictor.rounds(Setup.of(self.candidate)).values()
        tokens = np.array([one.tokens for rounds in recorded for one in rounds if one.verify_rows > 1])
        most = self.candidate.build().target_rows - 1
        return tuple(float(np.mean(tokens > place)) for place in range(1, most + 1)) if tokens.size else ()

    def _predictor(self, profile: Profile, given: list[Round] | None) -> Predictor:
        return Predictor(
            profile,
            self.planned.trace,
            serving=MeasuredEngine.of(profile),
            seed=self.seed,
            given=given,
        )


def _slower(profile: Profile, factor: float) -> Profile:
    if factor == 1.0:
        return profile
    tables = {step.table for step in profile.steps}
    host = tuple(
        point.model_copy(update={"quantiles_s": tuple(factor * value for value in point.quantiles_s)})
        for point in profile.host
    )
    return profile.retimed(dict.fromkeys(tables, factor)).model_copy(update={"host": host})
