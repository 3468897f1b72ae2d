"""Published figures of acceptance that are fitted and predicted beside chains: by rank, and as mean lengths."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from swiftspec.acceptance import AcceptanceModel, rank_acceptance
from swiftspec.acceptance.records import PublishedAcceptance, published_acceptance


def acceptance_of(target: str, draft: str, dataset: str | None = None) -> list[PublishedAcceptance]:
    """Records of a pair, on one data set or all."""
    return [
        record
        for record in published_acceptance()
        if (record.target, record.draft) == (target, draft) and dataset in (None, record.dataset)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Share of positions whose token is the draft's first candidate, second, ...; `cumulative`: among the first r."""

    values: tuple[float, ...]
    cumulative: bool = False

    @property
    def identifies(self) -> tuple[str, ...]:
        return ("mean_logit", "runner_up") if len(self.values) > 1 else ("mean_logit",)

    def errors(self, acceptance_model: AcceptanceModel) -> list[float]:
        """Predicted minus published, marginal."""
        published = np.diff(self.values, prepend=0.0) if self.cumulative else np.array(self.values)
        errors: list[float] = (rank_acceptance(acceptance_model, len(published)) - published).tolist()
        return errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """A mean acceptance length, and an acceptance model's prediction of it in the same shape."""

    value: float
    of: Callable[[AcceptanceModel], float]

    @property
    def identifies(self) -> tuple[str, ...]:
        return ("mean_logit",)

    def errors(self, acceptance_model: AcceptanceModel) -> list[float]:
        """Predicted over published, minus 1."""
        return [self.of(acceptance_model) / self.value - 1]
