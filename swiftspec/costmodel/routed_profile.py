"""A profile of a sparse target, with verifications as long as those of a trace's texts.

A profile's rows are of true texts, but each time of another place than the text before them, so that they touch more
experts than rows that continue it. The trace knows what consecutive tokens of its outputs touch. The difference is
priced with the seconds of an expert that the profile's own verifications show (see `ExpertFit`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.routes import ExpertsTouched, TouchedPoint
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.costmodel.measured_routing import mean_touched
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import Sharing, fit_costs
from swiftspec.timing.step_key import StepTable
from swiftspec.timing.timeline import Phase

_FIXED, _EXPERT, _ROW = "fixed", "expert", "row"
_LEAST_SIZES = 4  # three costs go through any three sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFit:
    """Seconds of a verification as three costs, by relative least squares."""

    table: StepTable  # the devices, and whether the draft was busy
    seconds: Mapping[int, float]  # measured medians by rows
    # fixed_s, expert_s, row_s: of any verification, of reading an expert of all layers, and of computing a row
    fixed_s: float
    expert_s: float
    row_s: float
    largest_error: float  # largest share of a measured time by which the fit misses it
    largest_error_by_rows: float  # the same without a cost of experts


def expert_fits(profile: Profile, *, context: int) -> list[ExpertFit]:
    """A fit for every table of verifications after a context, for the sizes whose experts the profile knows."""
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


_LEAST_LEFT = 0.5  # of a measured time, whatever the fit says
_HALVES = (Phase.EXIT, Phase.FINISH)

_Factors = Mapping[tuple[StepTable, int, int], float]  # by table of verifications, rows and context


def routed_profile(profile: Profile, trace: AcceptanceTrace) -> Profile:
    """The profile for verifications of the trace's texts; the same object if either knows no routes, or both agree.

    Steps of several sequences stay as measured: the rows of each are routed by themselves.
    """
    measured, routed = profile.experts_touched, _touched(profile, trace)
    if measured is None or routed is None or routed == measured:
        return profile
    factors = _factors(profile, measured.by_rows(), routed.by_rows())
    return profile.model_copy(
        update={
            "steps": tuple(_scaled(step, factors) for step in profile.steps),
            "sharing": profile.sharing and _as_measured(profile.sharing, factors),
            "experts_touched": routed,
        }
    )


def _touched(profile: Profile, trace: AcceptanceTrace) -> ExpertsTouched | None:
    """Experts that as many consecutive tokens of the trace touch as the profile's verifications have rows.

    None if that is unknown, or for another target. More rows than an output has tokens touch as many fewer than the
    profile's as the longest window does.
    """
    measured = profile.experts_touched
    routes = [prompt.routes for prompt in trace.prompts if prompt.routes is not None]
    if measured is None or not routes:
        return None
    if (measured.num_experts, measured.num_active) != (trace.num_experts, routes[0].shape[-1]):
        return None
    by_rows = measured.by_rows()
    windows = mean_touched(routes, num_experts=trace.num_experts, longest=max(by_rows))
    known = [rows for rows in by_rows if rows <= len(windows)]
    beyond = windows[known[-1] - 1] - by_rows[known[-1]] if known else 0.0
    points = [
        TouchedPoint(
            rows=rows,
            experts=windows[rows - 1]
            if rows in known
            else min(max(experts + beyond, measured.num_active), measured.num_experts),
        )
        for rows, experts in by_rows.items()
    ]
    return ExpertsTouched(num_experts=measured.num_experts, num_active=measured.num_active, points=tuple(points))


def _factors(profile: Profile, measured: Mapping[int, float], routed: Mapping[int, float]) -> _Factors:
    """Time of a verification of the trace's rows over that of the profile's, where the fit of a table knows it."""
    contexts = {step.context for step in profile.steps if step.phase is Phase.VERIFY}
    return {
        (fit.table, rows, context): max(_LEAST_LEFT, 1 + fit.expert_s * (routed[rows] - measured[rows]) / seconds)
        for context in contexts
        for fit in expert_fits(profile, context=context)
        for rows, seconds in fit.seconds.items()
    }


def _scaled(step: StepPoint, factors: _Factors) -> StepPoint:
    """A verification, or a half of one, as long as the trace's rows take; any other step as it is."""
    if step.role is not Role.TARGET or step.phase not in (Phase.VERIFY, *_HALVES):
        return step
    table = step.table._replace(phase=Phase.VERIFY)
    factor = factors.get((table, step.rows, step.context), 1.0)
    if factor == 1.0:
        return step
    quantiles_s = tuple(factor * value for value in step.quantiles_s)
    parts = tuple(part.model_copy(update={"seconds": factor * part.seconds}) for part in step.parts)
    return step.model_copy(update={"quantiles_s": quantiles_s, "parts": parts, "provenance": Provenance.INTERPOLATED})


def _as_measured(sharing: Sharing, factors: _Factors) -> Sharing:
    """Sharing costs with which steps of several sequences take what they took, although those of one take less."""

    def factor(role: Role, degree: int, ranks: int, peer_busy: bool, rows: int, context: int) -> float:
        tables = [StepTable(role, Phase.VERIFY, degree, peer_busy, cold, ranks) for cold in (False, True)]
        return next((factors[key] for table in tables if (key := (table, rows, context)) in factors), 1.0)

    points = [
        point.model_copy(update={"median_s": point.median_s * factor(*point.table, point.rows, point.context)})
        if point.sequences == 1
        else point
        for point in sharing.points
    ]
    return sharing.model_copy(update={"costs": fit_costs(points)})
