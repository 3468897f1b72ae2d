"""Fits of a sparse target's measured verifications: does their time follow the experts that they touch?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepTable
from swiftspec.timing.timeline import Phase

__all__ = ["ExpertFit", "expert_fits"]

_FIXED, _EXPERT, _ROW = "fixed", "expert", "row"
_LEAST_SIZES = 4  # three costs go through any three sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFit:
    """Seconds of a verification as three costs, by relative least squares.

    table: the devices, and whether the draft was busy.
    seconds: measured medians by rows.
    fixed_s, expert_s, row_s: of any verification, of reading an expert of all layers, and of computing a row.
    largest_error: largest share of a measured time by which the fit misses it.
    largest_error_by_rows: the same without a cost of experts.
    """

    table: StepTable
    seconds: Mapping[int, float]
    fixed_s: float
    expert_s: float
    row_s: float
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
    rows = {count: float(count) for count in seconds}
    fit, largest_error = _linear(seconds, {_EXPERT: touched, _ROW: rows})
    _, largest_error_by_rows = _linear(seconds, {_ROW: rows})
    return ExpertFit(
        table=table,
        seconds=seconds,
        fixed_s=fit.coefficients[_FIXED],
        expert_s=fit.coefficients[_EXPERT],
        row_s=fit.coefficients[_ROW],
        largest_error=largest_error,
        largest_error_by_rows=largest_error_by_rows,
    )


def _linear(seconds: Mapping[int, float], by_rows: Mapping[str, Mapping[int, float]]) -> tuple[LinearFit, float]:
    """The fit of seconds to a fixed cost and amounts, all by rows, and its largest relative error."""
    observations = [
        Observation(
            name=str(rows),
            amounts={_FIXED: 1.0, **{name: amounts[rows] for name, amounts in by_rows.items()}},
            seconds=value,
        )
        for rows, value in seconds.items()
    ]
    fit = LinearFit.to(observations)
    return fit, max(abs(fit.error(observation)) for observation in observations)
