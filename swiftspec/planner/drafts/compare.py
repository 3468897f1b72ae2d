"""All kinds of drafts on one target and one set of devices, at several loads.

Every load is a closed loop of clients, which `under_load` predicts for each shape that is plausible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from pathlib import Path

from swiftspec.artifacts.gain import Gain
from swiftspec.artifacts.kinds import DeviceUse, DraftingKind, KindComparison
from swiftspec.costmodel.shipped import described_kernels
from swiftspec.errors import FieldError
from swiftspec.models.spec import ModelSpec, weight_bytes
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.named import NONE, SUFFIX, DraftInput, Kind, kinds_of
from swiftspec.planner.drafts.shapes import Shapes, longest_text
from swiftspec.planner.for_device import check_acceptance, prepare
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.recorded_routing import with_recorded_routing
from swiftspec.planner.search.backends import Workers, uncollected
from swiftspec.planner.search.decision import UNKNOWN_ACCEPTANCE, acceptance_error, gain_error
from swiftspec.policies.effects import Role
from swiftspec.progress import Progress
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.timing.latency import Provenance

_OURS = f"this package's engine with steps of {BatchLimits().max_rows} rows beside those of prompts"
_MOST_CLIENTS = 256  # of this package's engine, which has no limit of its own
_BETWEEN = (1, 2, 4, 8, 16, 32, 64, 128)
_UNUSED_DRAFT = "eagle3"  # of policies without a draft: every target can have one
_TEXT = Path(__file__).parents[2] / "profiles" / "demo-sapphire-rapids-2-cores" / "trace.npz"
_OUR_TEXT = (
    "no text is given: Python code that the bundled model wrote stands in, which repeats itself; --trace has yours"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Kinds of one draft, or those without a draft, to be compared in a process of their own.

    suffix: suffix decoding, if the user asked for it. between: loads that tell up to which one a kind pays.
    """

    deployment: Deployment
    target: str
    asked: DraftInput | None
    text: Path | None
    dataset: str | None
    clients: tuple[int, ...]
    seed: int
    suffix: DraftInput | None
    between: tuple[int, ...] = _BETWEEN

    def on(self, num_devices: int, clients: tuple[int, ...]) -> "_Task":
        """The same on fewer devices, at these loads alone."""
        fewer = replace(self.deployment, num_devices=num_devices)
        return replace(self, deployment=fewer, clients=clients, between=())


def compare_kinds(
    deployment: Deployment,
    *,
    target: str,
    drafts: Sequence[DraftInput],
    clients: Sequence[int],
    text: Path | None = None,
    dataset: str | None = None,
    seed: int = 0,
    num_jobs: int = -1,
    price_per_hour: float | None = None,
    progress: Progress,
) -> KindComparison:
    """Every kind of draft at its best shape, for every number of clients that decode together.

    drafts: with `suffix` among them its acceptance is the given one, and no text's.
    clients: loads: clients with one request each under way, all of which share every step.
    text: a recorded trace, whose text suffixes are looked up in. Its routing is used if its target has as many experts.
    dataset: acceptance on this data set or class of text.
    seed, num_jobs: as of a plan.
    price_per_hour: of one device, in any currency.

    ValueError: one sentence naming field and value. A draft that cannot be planned is no error if others can.
    """
    loads = _checked(clients, deployment)
    suffix = next((asked for asked in drafts if asked.draft == SUFFIX), None)
    drafts = [asked for asked in drafts if asked.draft != SUFFIX]
    for asked in drafts:
        deployment.pair(target, asked.draft)
        check_acceptance(dataset, None, asked.acceptance)
    planned = PlannedModel.of(Role.TARGET, target).in_layout(deployment.layout)
    deployment = with_recorded_routing(deployment, planned, text)
    quant = deployment.as_stored(planned, planned).quant
    serving = deployment.serving(planned, planned)
    whole = [
        _Task(
            deployment=deployment,
            target=target,
            asked=asked,
            text=text,
            dataset=dataset,
            clients=loads,
            seed=seed,
            suffix=suffix,
        )
        for asked in (None, *drafts)
    ]
    devices = deployment.num_devices
    each = None
    if deployment.layout is None:
        usable_bytes = deployment.memory(planned, planned).usable_bytes([Role.TARGET])
        each = _fewest_devices(planned.spec, quant, num_devices=devices, usable_bytes=usable_bytes)
    parts = [] if each is None else [task.on(each, _replica_loads(loads, devices // each)) for task in whole]
    found: list[DraftingKind] = []
    apart: list[DraftingKind] = []
    for done, kinds in enumerate(Workers(_compared, num_jobs).map([*whole, *parts]), start=1):
        (found if done <= len(whole) else apart).extend(kinds)
        progress(done, len(whole) + len(parts), "kinds of drafts")
    plain = found[0]
    if not plain.points:
        raise FieldError("target", target, f"it cannot be served on {deployment.num_devices} devices: {plain.reason}")
    spread = gain_error(deployment.engine if serving else None)
    return KindComparison(
        target=planned.name,
        device=deployment.device,
        num_devices=deployment.num_devices,
        quantisation=quant,
        context=deployment.context,
        clients=loads,
        kinds=tuple(_with_gains(kind, plain, loads, spread=spread) for kind in found),
        routing=str(deployment.routing) if planned.spec.experts else "",
        engine=serving.described() if serving else _OURS,
        kernels=described_kernels(deployment.device, deployment.op_tables),
        uses=tuple(_uses_of(loads, found, apart, devices=devices, each=each)) if each else (),
        price_per_hour=price_per_hour,
    )


def _checked(clients: Sequence[int], deployment: Deployment) -> tuple[int, ...]:
    engine = deployment.served_by
    most = engine.limits(deployment.spec, deployment.settings).requests if engine else _MOST_CLIENTS
    if deployment.output_tokens == 1:
        raise FieldError("output_tokens", "1", "expected at least 2: a speed is that of tokens after the first")
    if not clients:
        raise FieldError("clients", "empty", "expected numbers of requests at once, such as 1,4,16,64")
    for count in clients:
        if not 1 <= count <= most:
            raise FieldError("clients", count, f"expected 1 to {most}")
    return tuple(sorted(set(clients)))


@uncollected()
def _compared(task: _Task) -> list[DraftingKind]:
    """The kinds of a task. Whatever is wrong with a draft is the reason that it has no points."""
    if task.asked is None:
        text = task.text or _TEXT
        plain, suffix = Kind(name=NONE, policies=("autoregressive",)), Kind(name=SUFFIX, policies=("suffix_decoding",))
        return [_kind(task, plain), _kind(task, suffix, text=text)]
    models = task.deployment.pair(task.target, task.asked.draft)
    kinds = kinds_of(models[1].name, models[1].kind, num_devices=task.deployment.num_devices)
    # No engine that serves has a draft on devices of its own.
    return [_kind(task, kind) for kind in kinds if task.deployment.served_by is None or not kind.own_devices]


def _kind(task: _Task, kind: Kind, *, text: Path | None = None) -> DraftingKind:
    draft = task.asked.draft if task.asked else _UNUSED_DRAFT
    models = task.deployment.pair(task.target, draft)
    deployment = task.deployment.as_stored(*models)
    named = {"name": kind.name, "draft": models[1].name if task.asked else "", "own_devices": kind.own_devices}
    try:
        inputs = prepare(
            deployment,
            target=models[0],
            draft=models[1],
            trace=text,
            dataset=task.dataset if task.asked else None,
            given=task.asked.acceptance if task.asked else None,
            seed=task.seed,
            longest=longest_text(deployment),
        )
    except ValueError as error:
        if task.asked is None:
            raise
        return DraftingKind.model_validate({**named, "reason": str(error)})
    counted = task.suffix.acceptance if task.suffix and kind.name == SUFFIX else None
    shapes = Shapes(kind=kind, deployment=deployment, models=models, inputs=inputs, seed=task.seed, counted=counted)
    between = () if kind.own_devices else tuple(load for load in task.between if load < max(task.clients))
    points = shapes.at_all(task.clients, between)
    stated = {}
    if kind.name != NONE:
        known = acceptance_error(inputs.acceptance)
        stated = {
            "provenance": inputs.acceptance.provenance,
            "basis": inputs.acceptance.basis,
            "warning": inputs.acceptance.warning,
            "acceptance_spread": UNKNOWN_ACCEPTANCE if known is None else known,
        }
    if kind.name == SUFFIX and counted:
        stated |= {"basis": counted.describe(), "provenance": Provenance.GIVEN}
    elif kind.name == SUFFIX and text == _TEXT:
        stated |= {"basis": _OUR_TEXT, "is_bundled": task.suffix is None}
    elif kind.name == SUFFIX and inputs.acceptance.provenance is Provenance.ASSUMED:
        stated["provenance"] = Provenance.GIVEN  # only the target's text matters, whatever drafted it
    return DraftingKind.model_validate(
        {
            **named,
            **stated,
            "points": tuple(points),
            "memory": shapes.memory(points[0]) if points else None,
            "reason": shapes.objection(task.clients),
        }
    )


def _with_gains(kind: DraftingKind, plain: DraftingKind, loads: Sequence[int], *, spread: float) -> DraftingKind:
    """The kind at the loads that were asked for, and the load up to which it beats plain decoding at all of them.

    spread: relative standard deviation of a gain whose acceptance is known.
    """
    gains = {
        point.clients: point.user_tokens_per_s / other.user_tokens_per_s
        for point in kind.points
        if (other := plain.at(point.clients)) is not None and kind is not plain
    }
    points = []
    for point in (point for point in kind.points if point.clients in loads):
        stated: dict[str, object] = {"pays_above": {}}
        if (gain := gains.get(point.clients)) and (other := plain.at(point.clients)):
            stated["gain"] = Gain.within(gain, spread=spread, acceptance=kind.acceptance_spread)
            # A round takes the same whatever it brings, so that these tokens per round need no acceptance.
            stated["pays_above"] = {
                tokens: round_s * other.user_tokens_per_s for tokens, round_s in point.pays_above.items()
            }
        points.append(point.model_copy(update=stated))
    pays_up_to = last_gain(list(gains.items()))
    is_open = pays_up_to is not None and pays_up_to == max(gains)
    return kind.model_copy(update={"points": tuple(points), "pays_up_to": pays_up_to, "is_open": is_open})


def last_gain(gains: Sequence[tuple[int, float]]) -> float | None:
    """The load at which a gain falls to 1 for good, linear in the load's logarithm; the last one if it does not."""
    if gains and gains[-1][1] > 1:
        return float(gains[-1][0])
    for (load, gain), (more, less) in reversed(list(pairwise(gains))):
        if gain > 1 >= less:
            share = (gain - 1) / (gain - less)
            return exp(log(load) + share * (log(more) - log(load)))
    return None


def _fewest_devices(target: ModelSpec, quant: str, *, num_devices: int, usable_bytes: int) -> int | None:
    """Devices of each of several replicas: as few as hold the target's weights; None if there is room for one only."""
    parts = (count for count in range(1, num_devices // 2 + 1) if num_devices % count == 0)
    return next(
        (
            count
            for count in parts
            if target.objection(count) is None and weight_bytes(target, quant) / count < usable_bytes
        ),
        None,
    )


def _replica_loads(clients: Sequence[int], replicas: int) -> tuple[int, ...]:
    """Clients of one replica, and of a single one that serves all."""
    return tuple(sorted({*(-(-load // replicas) for load in clients if load >= replicas), *clients}))


def _uses_of(
    clients: Sequence[int], together: Sequence[DraftingKind], apart: Sequence[DraftingKind], *, devices: int, each: int
) -> Iterator[DeviceUse]:
    """The best of every way at every load. `apart`: kinds on the devices of one replica, at `_replica_loads`."""
    replicas = devices // each
    own = [kind for kind in together if kind.own_devices]
    shared = [kind for kind in together if not kind.own_devices]
    for load in clients:
        yield from _use(shared, load, load, replicas=1, each=devices)
        yield from _use(own, load, load, replicas=1, each=devices)
        if load >= replicas:
            yield from _use(apart, load, -(-load // replicas), replicas=replicas, each=each)
        yield from _use(apart, load, load, replicas=1, each=each)


def _use(kinds: Sequence[DraftingKind], load: int, served: int, *, replicas: int, each: int) -> Iterator[DeviceUse]:
    """The fastest kind for `served` clients on each replica; lookups in text that is not the user's do not count."""
    found = [(kind, point) for kind in kinds if (point := kind.at(served)) is not None and not kind.is_bundled]
    if found:
        kind, point = max(found, key=lambda pair: pair[1].user_tokens_per_s)
        yield DeviceUse(
            clients=load,
            replicas=replicas,
            replica_devices=each,
            kind=kind.name,
            split=point.split,
            num_draft_tokens=point.num_draft_tokens,
            user_tokens_per_s=point.user_tokens_per_s,
            tokens_per_s=point.device_tokens_per_s * each * load / served,
        )
