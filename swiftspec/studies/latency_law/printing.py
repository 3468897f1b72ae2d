"""Tables and sentences of a sweep."""

import math
from collections.abc import Iterator

from swiftspec.cli import console
from swiftspec.reports.formatting import count, milliseconds, percent, signed_percent
from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.curves import derived_law, fitted_law
from swiftspec.studies.latency_law.document import Curve, CurveKind, Sweep, SweepComparison, SweepPoint, SweptPolicy

_LATE_S = 0.01
_FEW = 2  # policies whose runs are printed
_RUNS = ("run", "requests", "per second", "load", "E2E", "fitted", "error", "derived", "TTFT", "TPOT")
_LAWS = ("policy", "", "C1 ms", "C2 ms", "R2", "derived C1", "error", "derived C2", "error", "1/C2", "at most")


def show_sweep(swept: Sweep) -> None:
    """Print every figure."""
    names = " and ".join(policy.candidate for policy in swept.policies)
    kinds = [kind for kind in CurveKind if any(kind in policy.curves for policy in swept.policies)]
    console.paragraph(
        f"Swept {names}, {' and '.join(kinds)}: {count(swept.num_requests, 'request')}, prompts {swept.prompt_tokens}, "
        f"outputs {swept.output_tokens}, at most {swept.max_running} at once"
    )
    coverage = _coverage(swept)
    if len(swept.policies) <= _FEW:
        for policy in swept.policies:
            _show_runs(policy, coverage, swept.max_running)
    _show_laws(swept, coverage)
    _show_errors(swept)
    _show_parts(swept)
    for comparison in swept.comparisons:
        console.paragraph(_compared(comparison, swept))
    _show_lengths(swept)
    late_s = max((point.late_s for policy in swept.policies for point in policy.curve.points), default=0.0)
    if late_s > _LATE_S:
        console.paragraph(f"Requests were submitted up to {milliseconds(late_s)} ms late: the machine was overloaded")


def _coverage(swept: Sweep) -> ExpertCoverage | None:
    if swept.experts is None or swept.active_experts is None:
        return None
    return ExpertCoverage(experts=swept.experts, active=swept.active_experts)


def _show_runs(policy: SweptPolicy, coverage: ExpertCoverage | None, max_running: int) -> None:
    curve = policy.curve
    kind = next(kind for kind, each in policy.curves.items() if each is curve)
    fitted, derived = fitted_law(policy, curve, coverage), derived_law(policy, curve, coverage)
    alone = _row(
        "one client", curve.synchronous, fitted.latency_s(0.0), None if derived is None else derived.c1_s, load=""
    )
    rows = [alone]
    for point in curve.points:
        limited_s = None if derived is None else derived.limited_latency_s(point.rate, max_running)
        rows.append(
            _row("poisson", point, fitted.latency_s(point.rate), limited_s, load=percent(fitted.load(point.rate)))
        )
    together_s = None if derived is None else derived.shared_s(max_running - 1)
    rows.append(_row(f"{max_running} clients", curve.saturating, None, together_s, load=""))
    console.table(f"{policy.candidate}, {kind}: means in ms; load is RPS C2", _RUNS, rows)


def _row(
    name: str, point: SweepPoint, fitted_s: float | None, derived_s: float | None, *, load: str
) -> tuple[str, ...]:
    return (
        name,
        str(point.num_requests),
        f"{point.rate:.3g}",
        load,
        milliseconds(point.e2e_s),
        "" if fitted_s is None else milliseconds(fitted_s),
        "" if fitted_s is None else signed_percent(fitted_s / point.e2e_s - 1),
        "" if derived_s is None else milliseconds(derived_s) if math.isfinite(derived_s) else "no bound",
        milliseconds(point.metrics.ttft_s.mean),
        milliseconds(point.metrics.tpot_s.mean),
    )


def _show_laws(swept: Sweep, coverage: ExpertCoverage | None) -> None:
    term = "" if coverage is None else f", C1 by the share of {coverage.experts} experts that {coverage.active} reach"
    rows = [
        _law(policy.candidate if number == 0 else "", kind, curve)
        for policy in swept.policies
        for number, (kind, curve) in enumerate(policy.curves.items())
    ]
    console.table(f"L = C1 / (1 - RPS C2){term}", _LAWS, rows, num_text_columns=2)
    console.paragraph()
    console.paragraph(
        "Fitted to one client, as no load, and to Poisson arrivals. Derived: from the rounds of one client and of "
        f"{swept.max_running} clients alone; errors are derived over fitted. 1/C2 is the saturation in requests/s if "
        f"any number may run at once; {swept.max_running} at once serve at most as many as the last column says."
    )


def _law(name: str, kind: CurveKind, curve: Curve) -> tuple[str, ...]:
    fitted, derived = curve.fitted, curve.derived
    return (
        name,
        kind,
        milliseconds(fitted.c1_s),
        milliseconds(fitted.c2_s),
        f"{fitted.r2:.4f}",
        "" if derived is None else milliseconds(derived.c1_s),
        "" if derived is None else signed_percent(derived.c1_s / fitted.c1_s - 1),
        "" if derived is None else milliseconds(derived.c2_s),
        "" if derived is None or not fitted.c2_s else signed_percent(derived.c2_s / fitted.c2_s - 1),
        f"{1 / fitted.c2_s:.3g}" if fitted.c2_s else "no bound",
        f"{curve.saturating.rate:.3g}",
    )


def _show_errors(swept: Sweep) -> None:
    """Predicted against measured C1 and C2."""
    for policy in swept.policies:
        measured = policy.curves.get(CurveKind.MEASURED)
        for kind in (CurveKind.PREDICTED, CurveKind.RETIMED):
            curve = policy.curves.get(kind)
            if measured is None or curve is None or not measured.fitted.c2_s:
                continue
            console.paragraph(
                f"{policy.candidate}, {kind} over measured: C1 "
                f"{signed_percent(curve.fitted.c1_s / measured.fitted.c1_s - 1)}, C2 "
                f"{signed_percent(curve.fitted.c2_s / measured.fitted.c2_s - 1)}"
            )


def _show_parts(swept: Sweep) -> None:
    rows = [row for policy in swept.policies for row in _parts(policy)]
    if not rows:
        return
    columns = ("policy", "part", "times", "c1 ms", "c2 ms", "of C1", "of C2")
    title = "Parts of a request as derived: c1 of one that is alone, c2 what each further request adds"
    console.table(title, columns, rows, num_text_columns=2)


def _parts(policy: SweptPolicy) -> Iterator[tuple[str, ...]]:
    derived = policy.curve.derived
    if derived is None:
        return
    for number, part in enumerate(derived.parts):
        yield (
            policy.candidate if number == 0 else "",
            part.part,
            f"{part.number:.1f}",
            f"{part.c1_s * 1e3:.3f}",
            f"{part.c2_s * 1e3:.3f}",
            percent(part.number * part.c1_s / derived.c1_s),
            percent(part.number * part.c2_s / derived.c2_s) if derived.c2_s else "",
        )


def _compared(comparison: SweepComparison, swept: Sweep) -> str:
    """Sentence: ratios, and the load up to which speculation pays."""
    load, rate = comparison.break_even_load, comparison.break_even_rate
    pays = "pays at every load" if comparison.c1_ratio < 1 else "pays at no load"
    if load is not None and rate is not None:
        side = "below" if comparison.c1_ratio < 1 else "above"
        most = min(policy.curve.saturating.rate for policy in swept.policies)
        beyond = f"; {swept.max_running} requests at once serve {most:.3g} at most" if rate > most else ""
        pays = f"pays {side} {percent(load)} of the plain server's saturation 1/C2, {rate:.3g} requests/s{beyond}"
    return (
        f"{comparison.candidate} against plain decoding, {comparison.kind}: C1R {comparison.c1_ratio:.3f}, C2R "
        f"{comparison.c2_ratio:.3f}; speculation {pays}"
    )


def _show_lengths(swept: Sweep) -> None:
    if not swept.best_lengths:
        return
    lengths = list(swept.best_lengths[0].latencies_s)
    rows = [
        (
            f"{best.rate:.3g}",
            percent(best.load),
            str(best.num_draft_tokens or "plain"),
            *("" if seconds is None else milliseconds(seconds) for seconds in best.latencies_s.values()),
        )
        for best in swept.best_lengths
    ]
    columns = ("requests/s", "load", "best", *("plain" if length == 0 else f"{length}" for length in lengths))
    console.table("Best number of draft tokens by load of the plain server, and E2E in ms by the laws", columns, rows)
