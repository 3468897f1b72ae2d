"""Sections about what a prediction rests on: latencies, acceptance, links and memory; and sources of all numbers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from swiftspec.artifacts.plan import Basis, GroupMemory, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.devices import DEVICES
from swiftspec.files.document import Origin
from swiftspec.models.published import known_model, model_names
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import count, gigabytes, known_errors, percent, provenance_shares
from swiftspec.reports.model import Bar, Command, Facts, Part, Section, Segment, Source
from swiftspec.timing.latency import Provenance

_PAINTS = {Role.TARGET: "verify", Role.DRAFT: "expand"}
_KV_SHADE = 0.55


def provenance(plan: Plan) -> Section:
    """Shares of the chosen candidate's predicted time by provenance, best known first, and known errors."""
    shares = plan.chosen.prediction.provenance
    bar = Bar(
        title=f"Predicted time rests on: {provenance_shares(shares)}",
        segments=[
            Segment(provenance, shares[provenance], percent(shares[provenance]), provenance)
            for provenance in Provenance
            if shares.get(provenance, 0.0) > 0
        ],
    )
    errors = known_errors(plan)
    return Section(
        key="provenance",
        title="What the prediction rests on",
        caption="Share of the predicted seconds, both roles together, best known first.",
        parts=(bar, *([f"Predictions: {errors}."] if errors else [])),
        sources=(Source.LATENCIES,),
    )


def acceptance(plan: Plan) -> Section:
    """Acceptance figures of the chosen candidate, and where acceptance is from."""
    known, metrics = plan.acceptance, plan.chosen.prediction.metrics
    figures = {
        "accepted draft tokens per verification": f"{metrics.acceptance_length:.2f}",
        "tokens per round, the target's own included": f"{metrics.figures.tokens_per_round:.2f}",
    }
    if metrics.hit_fraction is not None:
        figures["rounds whose next rows needed no further draft forward"] = percent(metrics.hit_fraction)
    if metrics.wasted_draft is not None:
        figures["draft rows beyond one per output token"] = percent(metrics.wasted_draft)
    basis = [] if known is None else [f"Acceptance ({known.provenance}): {known.basis.removesuffix('.')}."]
    return Section(
        key="acceptance",
        title="Acceptance",
        parts=(*basis, Facts(figures)),
        sources=(Source.SIMULATION, Source.ACCEPTANCE),
    )


def machine(plan: Plan) -> Section:
    """All-reduce, nodes, and what each device holds, of a plan for devices that are not here."""
    return Section(
        key="machine",
        title="Links and memory",
        caption="Gigabytes (10⁹ bytes) on each device; the full width is the usable memory." if plan.memory else "",
        parts=(*_links(plan), *map(_group, plan.memory)),
        sources=(*([Source.LATENCIES] if plan.collectives else []), *([Source.DATASHEETS] if plan.memory else [])),
    )


def _links(plan: Plan) -> Iterator[str]:
    for used in plan.collectives:
        known = ", ".join(f"{name} {seconds * 1e6:.1f} µs" for name, seconds in used.seconds.items())
        of_which = f"{used.implementation}, of {known}" if len(used.seconds) > 1 else known
        yield f"All-reduce of the {used.role} on {count(used.degree, 'device')}: {of_which}."
    device = DEVICES.get(plan.device)
    if device is not None and plan.num_devices > device.devices_per_node:
        yield (
            f"Nodes of {device.devices_per_node} devices: a forward is divided within one node; messages between nodes "
            "carry token ids, and are assumed to take as long as within one."
        )


def _group(group: GroupMemory) -> Bar:
    held = [
        *((f"{role} weights", size, _PAINTS[role], 1.0) for role, size in group.weights_bytes.items()),
        *((f"{role} KV cache", size, _PAINTS[role], _KV_SHADE) for role, size in group.kv_bytes.items()),
        ("graphs and workspace", group.reserve_bytes, "wait", 1.0),
    ]
    whose = " and ".join(group.weights_bytes)
    of_each = f"each of {len(group.devices)} devices" if len(group.devices) > 1 else "the device"
    return Bar(
        title=f"Memory of {of_each} of the {whose}: {gigabytes(group.used_bytes)} GB of "
        f"{gigabytes(group.usable_bytes)} GB, {gigabytes(sum(group.weights_bytes.values()))} GB of them weights",
        segments=[Segment(name, size, f"{gigabytes(size)} GB", paint, shade) for name, size, paint, shade in held],
        total=max(group.usable_bytes, group.used_bytes),
    )


def references(plan: Plan, profile: Profile) -> Mapping[Source, Sequence[Part]]:
    """What a plan's numbers rest on, in the order of `Source`: files with their digests, and who wrote them."""
    without = "" if plan.known_errors else "; they do not include the profile's own error"
    simulation = (
        f"{count(plan.num_simulated, 'option')} simulated; the finalists on every prompt of the trace, up to "
        f"{count(plan.max_new_tokens, 'output token')} each. Intervals are 95 % confidence intervals of the mean over "
        f"prompts{without}."
    )
    trace = "Trace of how the draft ranks the target's tokens."
    found: dict[Source, Sequence[Part]] = {
        Source.SIMULATION: (simulation, *_written(plan.origin)),
        Source.LATENCIES: (*_latencies(plan, profile), _file(plan.profile), *_written(profile.origin)),
        Source.ACCEPTANCE: (trace, _file(plan.trace)),
    }
    if plan.memory or plan.quantisation:
        found[Source.DATASHEETS] = [_datasheets(plan)]
    return found


def _latencies(plan: Plan, profile: Profile) -> list[str]:
    counts = Counter(Provenance.COMPOSED if step.parts else step.provenance for step in profile.steps)
    kinds = ", ".join(f"{number} {provenance}" for provenance, number in counts.most_common())
    pair = f"{profile.target} and {profile.draft}" if plan.is_drafted else str(profile.target)
    text = f"Profile of {pair} on {profile.device}: {len(profile.steps)} steps ({kinds})."
    return [text, *(f"Composed from {source}." for source in profile.sources)]


def _datasheets(plan: Plan) -> str:
    models = {plan.target.model, *([plan.draft.model] if plan.is_drafted else [])} & set(model_names())
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
