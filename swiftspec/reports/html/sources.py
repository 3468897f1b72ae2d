"""Sources of a report's numbers: a numbered note per kind of source, cited after titles and figures."""

from collections import Counter
from enum import StrEnum

from swiftspec.artifacts.plan import Basis, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.devices import DEVICES
from swiftspec.files.document import Origin
from swiftspec.models import known_model, model_names
from swiftspec.reports.formatting import count
from swiftspec.reports.html.markup import Markup, element, join
from swiftspec.timing.latency import Provenance

__all__ = ["Source", "cite", "notes"]


class Source(StrEnum):
    """Kinds of sources, in the order of their notes."""

    SIMULATION = "Simulation"
    LATENCIES = "Latencies"
    ACCEPTANCE = "Acceptance"
    DATASHEETS = "Weights and devices"


def cite(*sources: Source) -> Markup:
    """Links to the notes, as superscripts."""
    order = list(Source)
    links = (
        element(
            "a",
            str(order.index(source) + 1),
            href=f"#source-{order.index(source) + 1}",
            title=f"Source: {source.lower()}",
            aria_label=f"Source {order.index(source) + 1}: {source.lower()}",
        )
        for source in sources
    )
    return element("sup", join(links, "\u2009"), class_="cite")


def notes(plan: Plan, profile: Profile) -> Markup:
    """The notes themselves, in the order of `Source`."""
    bodies = {
        Source.SIMULATION: _simulation(plan),
        Source.LATENCIES: _latencies(plan, profile),
        Source.ACCEPTANCE: _acceptance(plan),
    }
    if plan.memory or plan.quantisation:
        bodies[Source.DATASHEETS] = _datasheets(plan)
    items = (
        element("li", element("h3", source), bodies[source], id=f"source-{number}")
        for number, source in enumerate(bodies, start=1)
    )
    return element("ol", join(items), class_="notes")


def _simulation(plan: Plan) -> Markup:
    text = (
        f"{count(plan.num_simulated, 'option')} simulated; the finalists on every prompt of the trace, up to "
        f"{count(plan.max_new_tokens, 'output token')} each. Intervals are 95 % confidence intervals of the mean over "
        "prompts; they do not include the profile's own error."
    )
    return join((element("p", text), _origin(plan.origin)))


def _latencies(plan: Plan, profile: Profile) -> Markup:
    counts = Counter(Provenance.COMPOSED if step.parts else step.provenance for step in profile.steps)
    kinds = ", ".join(f"{number} {provenance}" for provenance, number in counts.most_common())
    text = f"Profile of {profile.target} and {profile.draft} on {profile.device}: {len(profile.steps)} steps ({kinds})."
    made_from = [element("p", f"Composed from {source}.") for source in profile.sources]
    return join((element("p", text), *made_from, _file(plan.profile), _origin(profile.origin)))


def _acceptance(plan: Plan) -> Markup:
    return join((element("p", "Trace of how the draft ranks the target's tokens."), _file(plan.trace)))


def _datasheets(plan: Plan) -> Markup:
    models = {plan.target.model, plan.draft.model} & set(model_names())
    found = [f"{name}: {known_model(name).source}" for name in sorted(models)]
    if plan.device in DEVICES:
        found.append(f"{plan.device}: {DEVICES[plan.device].source}")
    text = "Bytes are computed from the models' shapes, their weight formats and the memory of a device"
    return element("p", f"{text} ({'; '.join(found)})." if found else f"{text}.")


def _file(basis: Basis) -> Markup:
    digest = element("code", basis.sha256, class_="digest")
    return element("p", element("code", basis.path), ", SHA-256 ", digest)


def _origin(origin: Origin) -> Markup:
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    written = f"Written {origin.created_utc} on {origin.device}" + (f" with {versions}" if versions else "") + ", by"
    return join((element("p", written), element("pre", element("code", origin.command))))
