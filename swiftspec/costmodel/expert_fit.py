"""Fits of a sparse target's measured verifications: does their time follow the experts that they touch?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.steps import StepTable
from swiftspec.artifacts.timeline import Phase
from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.policies.effects import Role

__all__ = ["ExpertFit", "expert_fits"]

_FIXED, _SLOPE = "fixed", "slope"
_LEAST_SIZES = 3  # two costs go through any two sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFit:
    """Seconds of a verification as a fixed cost and one of every expert touched, by relative least squares.

    Parameters
    ----------
    table : StepTable
        The devices, and whether the draft was busy.
    seconds : mapping from int to float
        Measured medians by rows.
    fixed_s, expert_s : float
        The two costs; the second counts an expert of all layers.
    largest_error : float
        Largest share of a measured time by which the fit misses it.
    largest_error_by_rows : float
        The same for a fixed cost and one of every row.
    """

    table: StepTable
    seconds: Mapping[int, float]
    fixed_s: float
    expert_s: float
    largest_error: float
    largest_error_by_rows: float


def expert_fits(profile: Profile, *, context: int) -> list[ExpertFit]:
    """A fit for every table of verifications that were measured after a context, for the sizes whose experts are known.

    None of a profile without experts touched.
    """
    if profile.experts_touched is None:
        return []
    touched = profile.experts_touched.by_rows()
    tables: dict[StepTable, list[StepPoint]] = {}
    for step in profile.steps:
        if (step.role, step.phase, step.context) == (Role.TARGET, Phase.VERIFY, context) and step.rows in touched:
            tables.setdefault(step.table, []).append(step)
    return [_fit(table, steps, touched) for table, steps in tables.items() if len(steps) >= _LEAST_SIZES]


def _fit(table: StepTable, steps: Sequence[StepPoint], touched: Mapping[int, float]) -> ExpertFit:
    seconds = {step.rows: step.latency.median_s for step in sorted(steps, key=lambda step: step.rows)}
    by_experts, largest_error = _linear(seconds, touched)
    _, largest_error_by_rows = _linear(seconds, {rows: float(rows) for rows in seconds})
    return ExpertFit(
        table=table,
        seconds=seconds,
        fixed_s=by_experts.coefficients[_FIXED],
        expert_s=by_experts.coefficients[_SLOPE],
        largest_error=largest_error,
        largest_error_by_rows=largest_error_by_rows,
    )


def _linear(seconds: Mapping[int, float], amounts: Mapping[int, float]) -> tuple[LinearFit, float]:
    """The fit of seconds by rows to an amount, and its largest relative error."""
    observations = [
        Observation(name=str(rows), amounts={_FIXED: 1.0, _SLOPE: amounts[rows]}, seconds=value)
        for rows, value in seconds.items()
    ]
    fit = LinearFit.to(observations)
    return fit, max(abs(fit.error(observation)) for observation in observations)
