"""The report of a plan: one HTML file that needs nothing else, from a Plan, its Profile and a simulated timeline."""

from importlib.resources import files

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.reports.html import (
    acceptance,
    alternatives,
    answer,
    explored,
    fleet,
    machine,
    parts,
    sources,
    timing,
    under_load,
)
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.timing.timeline import Timeline

__all__ = ["render"]


def render(plan: Plan, *, profile: Profile, timeline: Timeline | None) -> str:
    """The report as the text of an HTML file; the same inputs give the same text.

    Parameters
    ----------
    profile : Profile
        The one that the plan was made from.
    timeline : Timeline, optional
        A simulated request of the chosen candidate; without one, the sections about a round's time are left out.
    """
    view = parts.View(plan=plan, profile=profile, timeline=timeline)
    made = (
        answer.answer(view),
        fleet.fleet(view),
        under_load.under_load(view),
        explored.heat_map(view),
        explored.speed_against_devices(view),
        timing.ten_rounds(view),
        timing.breakdown(view),
        timing.provenance_shares(view),
        machine.collectives(view),
        acceptance.acceptance(view),
        explored.sensitivity(view),
        alternatives.runners_up(view),
        alternatives.rejected(view),
        machine.memory(view),
        _sources(view),
    )
    main = element("main", *(part for part in made if part is not None))
    return "<!DOCTYPE html>\n" + element("html", _head(plan), element("body", main), lang="en") + "\n"


def _head(plan: Plan) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{plan.target.model} with {plan.draft.model} on {parts.machine(plan)}"),
        element("style", Markup(files("swiftspec.reports.html").joinpath("report.css").read_text(encoding="utf-8"))),
    )


def _sources(view: parts.View) -> Markup:
    title = element("h2", "Where the numbers come from", id="sources-title")
    notes = sources.notes(view.plan, view.profile)
    return element("section", join((title, notes)), id="sources", aria_labelledby="sources-title")
