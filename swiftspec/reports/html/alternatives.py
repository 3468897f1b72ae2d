"""Sections about alternatives: runners-up and rejected options."""

from collections.abc import Sequence

from swiftspec.artifacts.plan import Candidate
from swiftspec.reports.formatting import milliseconds, percent, speed
from swiftspec.reports.html.charts import interval
from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import DASH, Column, View, section, shape_text, table, traced
from swiftspec.reports.html.sources import Source

__all__ = ["rejected", "runners_up"]


def runners_up(view: View) -> Markup:
    """The best of every policy, the chosen one first."""
    candidates = list(view.plan.candidates.values())
    limit = max(candidate.prediction.tokens_per_s_high for candidate in candidates)
    columns = (
        Column(heading="policy"),
        Column(heading="split"),
        Column(heading="tokens/s", numeric=True),
        Column(heading="95 % interval, from 0"),
        Column(heading="round ms", numeric=True),
        Column(heading="p95", numeric=True),
        Column(heading="tokens per round", numeric=True),
        Column(heading="of light", numeric=True),
    )
    rows = [_row(candidate, limit=limit, chosen=number == 0) for number, candidate in enumerate(candidates)]
    return section(
        "policies",
        "The best of every policy",
        table(
            f"Outputs of up to {view.plan.max_new_tokens} tokens, on every traced prompt or, for much slower policies, "
            "on a few; the chosen one first",
            columns,
            rows,
            chosen=0,
            remarks=[shape_text(candidate) for candidate in candidates],
        ),
        sources=(Source.SIMULATION, Source.LATENCIES, Source.ACCEPTANCE),
    )


def _row(candidate: Candidate, *, limit: float, chosen: bool) -> Sequence[str]:
    prediction, metrics = candidate.prediction, candidate.prediction.metrics
    low, high = prediction.tokens_per_s_low, prediction.tokens_per_s_high
    figures = metrics.figures
    return (
        candidate.policy,
        candidate.split,
        traced(speed(figures.tokens_per_s), candidate),
        interval(low, figures.tokens_per_s, high, limit=limit, chosen=chosen),
        milliseconds(figures.round_s.median),
        milliseconds(figures.round_s.p95),
        f"{figures.tokens_per_round:.2f}",
        # With several target groups that verify at once, the speed of one is no bound.
        percent(metrics.light_fraction) if candidate.build().target_groups == 1 else DASH,
    )


def rejected(view: View) -> Markup | None:
    """Options that were not simulated, one row per reason, even if several policies share it."""
    rejections = view.plan.rejections
    if not rejections:
        return None
    rows = [(element("span", found.reason, class_="wrap"), str(found.num_options)) for found in rejections]
    remarks = [
        ", ".join(f"{policy} {number}" for policy, number in found.by_policy.items() if policy) for found in rejections
    ]
    columns = (Column(heading="reason"), Column(heading="options", numeric=True))
    caption = f"{sum(view.plan.rejected.values())} rejected, {view.plan.num_simulated} simulated"
    return section(
        "rejected",
        "Rejected options",
        table(caption, columns, rows, remarks=remarks),
        sources=(Source.SIMULATION,),
    )
