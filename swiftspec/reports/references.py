"""Where a report's numbers come from: a reference for every kind of source."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from swiftspec.artifacts.plan import Basis, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.devices import DEVICES
from swiftspec.files.document import Origin
from swiftspec.models import known_model, model_names
from swiftspec.reports.formatting import count
from swiftspec.reports.model import Source
from swiftspec.timing.latency import Provenance

__all__ = ["Reference", "references"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a kind of source is: sentences, the file with its digest, and where and by which command it was written."""

    sentences: tuple[str, ...]
    file: Basis | None = None
    origin: Origin | None = None


def references(plan: Plan, profile: Profile) -> Mapping[Source, Reference]:
    """References of a plan's report, in the order of `Source`."""
    found = {
        Source.SIMULATION: _simulation(plan),
        Source.LATENCIES: _latencies(plan, profile),
        Source.ACCEPTANCE: Reference(sentences=("Trace of how the draft ranks the target's tokens.",), file=plan.trace),
    }
    if plan.memory or plan.quantisation:
        found[Source.DATASHEETS] = _datasheets(plan)
    return found


def _simulation(plan: Plan) -> Reference:
    without = "" if plan.known_errors else "; they do not include the profile's own error"
    text = (
        f"{count(plan.num_simulated, 'option')} simulated; the finalists on every prompt of the trace, up to "
        f"{count(plan.max_new_tokens, 'output token')} each. Intervals are 95 % confidence intervals of the mean over "
        f"prompts{without}."
    )
    return Reference(sentences=(text,), origin=plan.origin)


def _latencies(plan: Plan, profile: Profile) -> Reference:
    counts = Counter(Provenance.COMPOSED if step.parts else step.provenance for step in profile.steps)
    kinds = ", ".join(f"{number} {provenance}" for provenance, number in counts.most_common())
    text = f"Profile of {profile.target} and {profile.draft} on {profile.device}: {len(profile.steps)} steps ({kinds})."
    composed = tuple(f"Composed from {source}." for source in profile.sources)
    return Reference(sentences=(text, *composed), file=plan.profile, origin=profile.origin)


def _datasheets(plan: Plan) -> Reference:
    models = {plan.target.model, plan.draft.model} & set(model_names())
    found = [f"{name}: {known_model(name).source}" for name in sorted(models)]
    if plan.device in DEVICES:
        found.append(f"{plan.device}: {DEVICES[plan.device].source}")
    text = "Bytes are computed from the models' shapes, their weight formats and the memory of a device"
    return Reference(sentences=(f"{text} ({'; '.join(found)})." if found else f"{text}.",))
