"""Fit of an acceptance model to published figures: least squares for the identified fields, a prior for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.model import PRIOR, AcceptanceModel, tree_acceptance

_BOUNDS = {
    "mean_logit": (-4.0, 12.0),
    "spread": (0.2, 8.0),
    "persistence": (0.0, 1.0),
    "correlation_length": (1.0, 2000.0),
    "runner_up": (0.02, 0.95),
    "depth_loss": (-1.0, 2.0),
}
_STEP = 0.02  # of a difference quotient, relative: a simulated length is not smooth


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
class Fit:
    """An acceptance model, its fields that the figures determined, and the root mean square of the residuals."""

    acceptance_model: AcceptanceModel
    fields: tuple[str, ...]
    residual: float


def fit_acceptance_model(
    observations: Sequence[Observation], *, prior: AcceptanceModel = PRIOR, fields: Sequence[str] | None = None
) -> Fit:
    """The acceptance model fitted to published figures of a pair.

    Deterministic: every acceptance model is evaluated on the same texts.

    prior: start of the search, and the values of the other fields. fields: fields to fit; by default those that the
    observations identify.

    ValueError: if there is no observation, or no such field.
    """
    if not observations:
        raise ValueError("observations is empty; a fit needs at least one published figure")
    wanted = {name for observation in observations for name in observation.identifies} if fields is None else {*fields}
    if strange := wanted - _BOUNDS.keys():
        raise ValueError(f"fields has {min(strange)!r}; expected some of {', '.join(_BOUNDS)}")
    names = [name for name in _BOUNDS if name in wanted]

    def acceptance_model(values: npt.NDArray[np.float64]) -> AcceptanceModel:
        return prior.model_copy(update=dict(zip(names, values.tolist(), strict=True)))

    def errors(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate([observation.errors(acceptance_model(values)) for observation in observations])

    lowest, highest = np.array([_BOUNDS[name] for name in names]).T
    start = np.clip([getattr(prior, name) for name in names], lowest + 1e-3, highest - 1e-3)
    from scipy.optimize import least_squares  # takes a fifth of a second, and most plans do not need it

    found = least_squares(errors, start, bounds=(lowest, highest), diff_step=_STEP, xtol=1e-4, ftol=1e-6)
    residual = float(np.sqrt(np.mean(found.fun**2)))
    return Fit(acceptance_model=acceptance_model(found.x), fields=tuple(names), residual=residual)
