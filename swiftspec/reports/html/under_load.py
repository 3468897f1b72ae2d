"""Section about the load that a plan was made for: the choice, and the best of every policy under it."""

from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import Column, View, section, table
from swiftspec.reports.html.sources import Source
from swiftspec.reports.under_load import COLUMNS, TITLE, assumed, cached, choice, load_row, single_request, unmet

__all__ = ["under_load"]

_NUM_TEXT_COLUMNS = 2


def under_load(view: View) -> Markup | None:
    """The section; None of a plan for one request at a time."""
    plan, load = view.plan, view.plan.under_load
    if load is None:
        return None
    sentences = (choice(plan, load), assumed(load), cached(plan, load), unmet(plan, load), single_request(plan, load))
    ranked = load.ranked
    return section(
        "load",
        "Under load",
        *(element("p", sentence) for sentence in sentences if sentence),
        table(
            TITLE,
            [Column(heading=title, numeric=number >= _NUM_TEXT_COLUMNS) for number, title in enumerate(COLUMNS)],
            [load_row(policy, plan.candidates[policy].split, prediction) for policy, prediction in ranked.items()],
            chosen=list(ranked).index(plan.chosen.policy),
            remarks=[prediction.candidate.partition(" (")[2].removesuffix(")") for prediction in ranked.values()],
        ),
        sources=(Source.SIMULATION, Source.LATENCIES, Source.ACCEPTANCE),
    )
