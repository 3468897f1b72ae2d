"""Curves of a sweep: laws fitted to its runs and derived from their rounds, and comparisons between policies."""

from collections.abc import Iterator, Mapping, Sequence

from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.document import (
    BestLength,
    Curve,
    DerivedLaw,
    FittedLaw,
    PartCost,
    SweepComparison,
    SweepPoint,
    SweptPolicy,
)
from swiftspec.studies.latency_law.fitting import fit_latencies, r_squared
from swiftspec.studies.latency_law.law import LatencyLaw
from swiftspec.studies.latency_law.rounds import DerivedCosts, RoundTable, derive_costs
from swiftspec.studies.latency_law.speculation import Comparison, best_length


def curve_of(
    points: Sequence[SweepPoint],
    rounds: Sequence[RoundTable | None],
    *,
    coverage: ExpertCoverage | None = None,
    rows: int = 1,
) -> Curve:
    """The curve of a policy's runs.

    Parameters
    ----------
    points : sequence of SweepPoint
        One client, as many clients as may run at once, and Poisson arrivals.
    rounds : sequence of RoundTable or None
        Of the first two.
    coverage, rows
        As in `LatencyLaw`.
    """
    synchronous, saturating, *open_points = points
    # Who is alone sees no load, whatever the rate at which one client sends its requests.
    rates = [0.0, *(point.rate for point in open_points)]
    latencies_s = [synchronous.e2e_s, *(point.e2e_s for point in open_points)]
    law = fit_latencies(rates, latencies_s, coverage=coverage, rows=rows)
    alone, together = rounds
    costs = derive_costs(alone, together) if alone is not None and together is not None else None
    return Curve(
        synchronous=synchronous,
        points=tuple(open_points),
        saturating=saturating,
        fitted=FittedLaw(c1_s=law.c1_s, c2_s=law.c2_s, r2=r_squared(law, rates, latencies_s)),
        derived=None if costs is None else _derived(costs),
    )


def _derived(costs: DerivedCosts) -> DerivedLaw:
    of = costs.costs
    parts = {
        "prefill": (1.0, of.prefill),
        "verification": (costs.rounds, of.verify),
        "draft forward": (costs.rounds * costs.drafts, of.draft),
        "rest of a round": (costs.rounds, of.rest),
    }
    total = costs.total
    return DerivedLaw(
        c1_s=total.c1_s,
        c2_s=max(0.0, total.c2_s),
        parts=tuple(
            PartCost(part=name, number=number, c1_s=cost.c1_s, c2_s=cost.c2_s)
            for name, (number, cost) in parts.items()
            if number
        ),
    )


def fitted_law(policy: SweptPolicy, curve: Curve, coverage: ExpertCoverage | None = None) -> LatencyLaw:
    """The law that was fitted to one of a policy's curves."""
    return LatencyLaw(c1_s=curve.fitted.c1_s, c2_s=curve.fitted.c2_s, coverage=coverage, rows=policy.rows)


def derived_law(policy: SweptPolicy, curve: Curve, coverage: ExpertCoverage | None = None) -> LatencyLaw | None:
    """The law that was derived from a curve's rounds, if it was."""
    if curve.derived is None:
        return None
    return LatencyLaw(c1_s=curve.derived.c1_s, c2_s=curve.derived.c2_s, coverage=coverage, rows=policy.rows)


def comparisons(
    plain: SweptPolicy, others: Sequence[SweptPolicy], coverage: ExpertCoverage | None = None
) -> Iterator[SweepComparison]:
    """Every policy against plain decoding, where both have a curve of the same origin."""
    for other in others:
        for kind, curve in other.curves.items():
            if kind not in plain.curves:
                continue
            found = Comparison(
                plain=fitted_law(plain, plain.curves[kind], coverage), speculative=fitted_law(other, curve, coverage)
            )
            yield SweepComparison(
                candidate=other.candidate,
                num_draft_tokens=other.num_draft_tokens,
                kind=kind,
                c1_ratio=found.c1_ratio,
                c2_ratio=found.c2_ratio,
                break_even_load=found.break_even_load,
                break_even_rate=found.break_even_rate,
            )


def best_lengths(
    plain: SweptPolicy, others: Sequence[SweptPolicy], coverage: ExpertCoverage | None = None
) -> Iterator[BestLength]:
    """The best number of draft tokens at each rate that plain decoding was swept at, and without load.

    A number counts below the throughput of its own closed loop only.
    """
    by_length = {0: plain} | {other.num_draft_tokens or 0: other for other in others}
    laws = {length: fitted_law(each, each.curve, coverage) for length, each in by_length.items()}
    for rate in (0.0, *(point.arrivals.rate or 0.0 for point in plain.curve.points)):
        able = {length: law for length, law in laws.items() if rate < by_length[length].curve.saturating.rate}
        yield BestLength(
            load=laws[0].load(rate),
            rate=rate,
            num_draft_tokens=best_length(able, rate),
            latencies_s=_latencies(laws, able, rate),
        )


def _latencies(laws: Mapping[int, LatencyLaw], able: Mapping[int, LatencyLaw], rate: float) -> dict[int, float | None]:
    return {length: laws[length].latency_s(rate) if length in able else None for length in laws}
