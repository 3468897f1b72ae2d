"""Published figures of acceptance that are fitted and predicted: of chains, by rank, and as mean lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from swiftspec.acceptance.fitting import Fit, fit_fields
from swiftspec.acceptance.model import PRIOR, AcceptanceModel, rank_acceptance, tree_acceptance
from swiftspec.acceptance.records import PublishedAcceptance, published_acceptance


def acceptance_of(target: str, draft: str, dataset: str | None = None) -> list[PublishedAcceptance]:
    """Records of a pair, on one data set or all."""
    return [
        record
        for record in published_acceptance()
        if (record.target, record.draft) == (target, draft) and dataset in (None, record.dataset)
    ]


class Observation(Protocol):
    """A published figure, the fields that it determines, and what an acceptance model's prediction misses it by."""

    @property
    def identifies(self) -> tuple[str, ...]: ...

    def errors(self, acceptance_model: AcceptanceModel) -> list[float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Cumulative acceptance of a chain: share of rounds that accept the first draft token, the first two, ..."""

    values: tuple[float, ...]

    @property
    def identifies(self) -> tuple[str, ...]:
        return ("mean_logit", "persistence") if len(self.values) > 1 else ("mean_logit",)

    def errors(self, acceptance_model: AcceptanceModel) -> list[float]:
        """Predicted minus published."""
        predicted = tree_acceptance(acceptance_model, (1,) * len(self.values))
        return [mine - theirs for mine, theirs in zip(predicted, self.values, strict=True)]


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


def fit_acceptance_model(
    observations: Sequence[Observation], *, prior: AcceptanceModel = PRIOR, fields: Sequence[str] | None = None
) -> Fit:
    """The acceptance model fitted to published figures of a pair.

    prior: as of `fit_fields`. fields: fields to fit; by default those that the observations identify.

    ValueError: if there is no observation, or no such field.
    """
    if not observations:
        raise ValueError("observations is empty; a fit needs at least one published figure")
    wanted = {name for observation in observations for name in observation.identifies} if fields is None else fields

    def errors(acceptance_model: AcceptanceModel) -> list[float]:
        return [error for observation in observations for error in observation.errors(acceptance_model)]

    return fit_fields(errors, wanted, prior=prior)
