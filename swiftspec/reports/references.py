"""Where a report's numbers come from: what is known of every kind of source."""

from collections import Counter
from collections.abc import Mapping, Sequence

from swiftspec.artifacts.plan import Basis, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.devices import DEVICES
from swiftspec.files.document import Origin
from swiftspec.models import known_model, model_names
from swiftspec.reports.formatting import count
from swiftspec.reports.model import Command, Part, Source
from swiftspec.timing.latency import Provenance

__all__ = ["references"]


def references(plan: Plan, profile: Profile) -> Mapping[Source, Sequence[Part]]:
    """What a plan's numbers rest on, in the order of `Source`: files with their digests, and who wrote them."""
    trace = "Trace of how the draft ranks the target's tokens."
    found: dict[Source, Sequence[Part]] = {
        Source.SIMULATION: (_simulation(plan), *_written(plan.origin)),
        Source.LATENCIES: (*_latencies(profile), _file(plan.profile), *_written(profile.origin)),
        Source.ACCEPTANCE: (trace, _file(plan.trace)),
    }
    if plan.memory or plan.quantisation:
        found[Source.DATASHEETS] = [_datasheets(plan)]
    return found


def _simulation(plan: Plan) -> str:
    without = "" if plan.known_errors else "; they do not include the profile's own error"
    return (
        f"{count(plan.num_simulated, 'option')} simulated; the finalists on every prompt of the trace, up to "
        f"{count(plan.max_new_tokens, 'output token')} each. Intervals are 95 % confidence intervals of the mean over "
        f"prompts{without}."
    )


def _latencies(profile: Profile) -> list[str]:
    counts = Counter(Provenance.COMPOSED if step.parts else step.provenance for step in profile.steps)
    kinds = ", ".join(f"{number} {provenance}" for provenance, number in counts.most_common())
    text = f"Profile of {profile.target} and {profile.draft} on {profile.device}: {len(profile.steps)} steps ({kinds})."
    return [text, *(f"Composed from {source}." for source in profile.sources)]


def _datasheets(plan: Plan) -> str:
    models = {plan.target.model, plan.draft.model} & set(model_names())
    found = [f"{name}: {known_model(name).source}" for name in sorted(models)]
    if plan.device in DEVICES:
        found.append(f"{plan.device}: {DEVICES[plan.device].source}")
    text = "Bytes are computed from the models' shapes, their weight formats and the memory of a device"
    return f"{text} ({'; '.join(found)})." if found else f"{text}."


def _file(basis: Basis) -> str:
    return f"{basis.path}, SHA-256 {basis.sha256}"


def _written(origin: Origin) -> tuple[str, Command]:
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    text = f"Written {origin.created_utc} on {origin.device}" + (f" with {versions}" if versions else "") + ", by"
    return text, Command(origin.command)
