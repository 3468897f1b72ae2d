"""All kinds of drafts on one target and one set of devices, at several loads.

Every load is a closed loop of clients, which `under_load` predicts for each shape that is plausible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from pathlib import Path

import joblib

from swiftspec.artifacts.kinds import DraftingKind, KindComparison
from swiftspec.planner.deployment import Deployment, PlannedModel, planned_pair
from swiftspec.planner.drafts.named import NONE, SUFFIX, Asked, Kind, kinds_of
from swiftspec.planner.drafts.shapes import Shapes, longest_text
from swiftspec.planner.for_device import check_acceptance, prepare
from swiftspec.planner.recorded_routing import with_recorded_routing
from swiftspec.planner.search.backends import run_parallel
from swiftspec.planner.search.collecting import uncollected
from swiftspec.planner.search.evaluation import warm_up
from swiftspec.policies.effects import Role
from swiftspec.progress import Progress
from swiftspec.scheduler.batching import BatchLimits

__all__ = ["compare_kinds", "last_gain"]

# More loads, which tell up to which one a kind pays.
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
    """Kinds of one draft, or those without a draft, to be compared in a process of their own."""

    deployment: Deployment
    target: str
    asked: Asked | None
    text: Path | None
    dataset: str | None
    clients: tuple[int, ...]
    seed: int


def compare_kinds(
    deployment: Deployment,
    *,
    target: str,
    drafts: Sequence[Asked],
    clients: Sequence[int],
    text: Path | None = None,
    dataset: str | None = None,
    seed: int = 0,
    num_jobs: int = -1,
    progress: Progress,
) -> KindComparison:
    """Every kind of draft at its best shape, for every number of clients that decode together.

    Parameters
    ----------
    deployment : Deployment
    target : str
    drafts : sequence of Asked
    clients : sequence of int
        Loads: clients with one request each under way, all of which share every step.
    text : Path, optional
        A recorded trace, whose text suffixes are looked up in. Its routing is used if its target has as many experts.
    dataset : str, optional
        Acceptance on this data set, where it is published.
    seed, num_jobs : int
        As of a plan.

    Raises
    ------
    ValueError
        One sentence naming field and value. A draft that cannot be planned is no error if others can.
    """
    loads = _checked(clients, deployment)
    for asked in drafts:
        planned_pair(target, asked.draft)
        check_acceptance(dataset, None, asked.acceptance)
    planned = PlannedModel.of(Role.TARGET, target)
    deployment = with_recorded_routing(deployment, planned, text)
    serving = deployment.serving(planned, planned)
    tasks = [
        _Task(deployment=deployment, target=target, asked=asked, text=text, dataset=dataset, clients=loads, seed=seed)
        for asked in (None, *drafts)
    ]
    found: list[DraftingKind] = []
    for done, kinds in enumerate(_run(tasks, num_jobs), start=1):
        found += kinds
        progress(done, len(tasks), "kinds of drafts")
    plain = found[0]
    if not plain.points:
        raise ValueError(f"target is {target}; it cannot be served on {deployment.num_devices} devices: {plain.reason}")
    return KindComparison(
        target=planned.name,
        device=deployment.device,
        num_devices=deployment.num_devices,
        quantisation=deployment.quant,
        context=deployment.context,
        clients=loads,
        kinds=tuple(_with_break_even(kind, plain, loads) for kind in found),
        routing=str(deployment.routing) if planned.spec.experts else "",
        engine=serving.described() if serving else _OURS,
    )


def _checked(clients: Sequence[int], deployment: Deployment) -> tuple[int, ...]:
    engine = deployment.served_by
    most = engine.limits(deployment.spec, deployment.settings).requests if engine else _MOST_CLIENTS
    if deployment.output_tokens == 1:
        raise ValueError("output_tokens is 1; expected at least 2: a speed is that of tokens after the first")
    if not clients:
        raise ValueError("clients is empty; expected numbers of requests at once, such as 1,4,16,64")
    for count in clients:
        if not 1 <= count <= most:
            raise ValueError(f"clients has {count}; expected 1 to {most}")
    return tuple(sorted(set(clients)))


def _run(tasks: Sequence[_Task], num_jobs: int) -> Iterator[list[DraftingKind]]:
    if num_jobs == 1:
        yield from map(_compared, tasks)
        return
    warm_up(num_jobs)
    yield from run_parallel((joblib.delayed(_compared)(task) for task in tasks), num_jobs)


@uncollected()
def _compared(task: _Task) -> list[DraftingKind]:
    """The kinds of a task. Whatever is wrong with a draft is the reason that it has no points."""
    if task.asked is None:
        text = task.text or _TEXT
        plain, suffix = Kind(name=NONE, policies=("autoregressive",)), Kind(name=SUFFIX, policies=("suffix_decoding",))
        return [_kind(task, plain), _kind(task, suffix, text=text)]
    models = planned_pair(task.target, task.asked.draft)
    kinds = kinds_of(models[1].name, models[1].kind, num_devices=task.deployment.num_devices)
    # No engine that serves has a draft on devices of its own.
    return [_kind(task, kind) for kind in kinds if task.deployment.served_by is None or not kind.own_devices]


def _kind(task: _Task, kind: Kind, *, text: Path | None = None) -> DraftingKind:
    draft = task.asked.draft if task.asked else _UNUSED_DRAFT
    models = planned_pair(task.target, draft)
    named = {"name": kind.name, "draft": models[1].name if task.asked else "", "own_devices": kind.own_devices}
    try:
        inputs = prepare(
            task.deployment,
            target=models[0],
            draft=models[1],
            trace=text,
            dataset=task.dataset if task.asked else None,
            given=task.asked.acceptance if task.asked else None,
            seed=task.seed,
            longest=longest_text(task.deployment),
        )
    except ValueError as error:
        if task.asked is None:
            raise
        return DraftingKind.model_validate({**named, "reason": str(error)})
    shapes = Shapes(kind=kind, deployment=task.deployment, models=models, inputs=inputs, seed=task.seed)
    between = () if kind.own_devices else tuple(load for load in _BETWEEN if load < max(task.clients))
    points = [point for load in sorted({*task.clients, *between}) if (point := shapes.best(load)) is not None]
    stated = {}
    if kind.name != NONE:
        stated = {"provenance": inputs.acceptance.provenance, "basis": inputs.acceptance.basis}
    if text == _TEXT:
        stated["basis"] = _OUR_TEXT
    return DraftingKind.model_validate(
        {**named, **stated, "points": tuple(points), "reason": shapes.objection(task.clients)}
    )


def _with_break_even(kind: DraftingKind, plain: DraftingKind, loads: Sequence[int]) -> DraftingKind:
    """The kind at the loads that were asked for, and the load up to which it beats plain decoding at all of them."""
    asked = tuple(point for point in kind.points if point.clients in loads)
    gains = [
        (point.clients, point.user_tokens_per_s / other.user_tokens_per_s)
        for point in kind.points
        if (other := plain.at(point.clients)) is not None
    ]
    pays_up_to = None if kind is plain else last_gain(gains)
    is_open = pays_up_to is not None and pays_up_to == gains[-1][0]
    return kind.model_copy(update={"points": asked, "pays_up_to": pays_up_to, "is_open": is_open})


def last_gain(gains: Sequence[tuple[int, float]]) -> float | None:
    """The load at which a gain falls to 1 for good, linear in the load's logarithm; the last one if it does not."""
    if gains and gains[-1][1] > 1:
        return float(gains[-1][0])
    for (load, gain), (more, less) in reversed(list(pairwise(gains))):
        if gain > 1 >= less:
            share = (gain - 1) / (gain - less)
            return exp(log(load) + share * (log(more) - log(load)))
    return None
