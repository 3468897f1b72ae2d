"""Fit of an acceptance model to figures: least squares for some of its fields, a prior for the rest."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.model import PRIOR, AcceptanceModel

_BOUNDS = {
    "mean_logit": (-4.0, 12.0),
    "spread": (0.2, 8.0),
    "persistence": (0.0, 1.0),
    "correlation_length": (1.0, 2000.0),
    "runner_up": (0.02, 0.95),
    "depth_loss": (-1.0, 2.0),
}
_STEP = 0.02  # of a difference quotient, relative: a simulated length is not smooth


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An acceptance model, its fields that the figures determined, and the root mean square of the residuals."""

    acceptance_model: AcceptanceModel
    fields: tuple[str, ...]
    residual: float


def fit_fields(
    errors: Callable[[AcceptanceModel], Sequence[float]], fields: Collection[str], *, prior: AcceptanceModel = PRIOR
) -> Fit:
    """The fields of least squared errors. Deterministic: every acceptance model is evaluated on the same texts.

    prior: start of the search, and the values of the other fields. ValueError: if there is no such field.
    """
    if strange := {*fields} - _BOUNDS.keys():
        raise ValueError(f"fields has {min(strange)!r}; expected some of {', '.join(_BOUNDS)}")
    names = [name for name in _BOUNDS if name in fields]

    def acceptance_model(values: npt.NDArray[np.float64]) -> AcceptanceModel:
        return prior.model_copy(update=dict(zip(names, values.tolist(), strict=True)))

    def of_values(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.array(errors(acceptance_model(values)))

    lowest, highest = np.array([_BOUNDS[name] for name in names]).T
    start = np.clip([getattr(prior, name) for name in names], lowest + 1e-3, highest - 1e-3)
    from scipy.optimize import least_squares  # takes a fifth of a second, and most plans do not need it

    found = least_squares(of_values, start, bounds=(lowest, highest), diff_step=_STEP, xtol=1e-4, ftol=1e-6)
    residual = float(np.sqrt(np.mean(found.fun**2)))
    return Fit(acceptance_model=acceptance_model(found.x), fields=tuple(names), residual=residual)
