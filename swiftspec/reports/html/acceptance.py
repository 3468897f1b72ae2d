"""Section about acceptance: how many of the draft's tokens the target accepts."""

from collections.abc import Iterator

from swiftspec.reports.formatting import percent
from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import View, as_sentence, definitions, section
from swiftspec.reports.html.sources import Source

__all__ = ["acceptance"]


def acceptance(view: View) -> Markup:
    """Acceptance figures of the chosen candidate."""
    known = view.plan.acceptance
    return section(
        "acceptance",
        "Acceptance",
        *([element("p", f"Acceptance is {known.warning}.", class_="warning")] if known and known.warning else []),
        *([element("p", as_sentence(known.basis), class_="quiet")] if known else []),
        definitions(list(_terms(view)), class_="facts"),
        sources=(Source.SIMULATION, Source.ACCEPTANCE),
    )


def _terms(view: View) -> Iterator[tuple[str, str]]:
    metrics = view.plan.chosen.prediction.metrics
    if view.plan.acceptance is not None:
        yield "known by", view.plan.acceptance.provenance.value
    yield "accepted draft tokens per verification", f"{metrics.acceptance_length:.2f}"
    yield "tokens per round, the target's own included", f"{metrics.figures.tokens_per_round:.2f}"
    if metrics.hit_fraction is not None:
        yield "rounds whose next rows needed no further draft forward", percent(metrics.hit_fraction)
    if metrics.wasted_draft is not None:
        yield "draft rows beyond one per output token", percent(metrics.wasted_draft)
