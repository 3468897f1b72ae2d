"""A fleet as a plan holds it: kinds of replicas with their break-even loads, and predictions for a replica's share."""

from collections.abc import Callable, Mapping, Sequence

from swiftspec.artifacts.fleet import Fleet, LoadPoint, ReplicaKind
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.under_load import LoadPrediction, UnderLoad, workload_sha256
from swiftspec.artifacts.workload import Workload
from swiftspec.files.document import Basis
from swiftspec.planner.fleet.break_even import break_evens
from swiftspec.planner.fleet.kinds import Kind
from swiftspec.planner.fleet.sizing import Sized
from swiftspec.planner.load import Load
from swiftspec.planner.under_load.load_curves import Means
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.simulator.replica import Replicas

__all__ = ["described_fleet", "described_load"]


def described_fleet(
    load: Load,
    best: Sized,
    count: int,
    point: LoadPoint,
    others: Sequence[Sized],
    pools: Sequence[Sized],
    *,
    most_devices: int,
    means: Means,
    profile: Profile,
    trace: AcceptanceTrace,
    price_per_hour: float | None,
    room: Callable[[Kind], int | None],
    num_simulations: int,
) -> Fleet:
    """The section of a plan whose replicas are `count` of the best kind."""
    ordered = [best, *sorted(others, key=lambda one: (one.devices, -one.kind.tokens_per_s)), *pools]
    kinds = [_described(one, room(one.kind)) for one in ordered]
    may_win = {
        kind.name + kind.candidate for kind, one in zip(kinds, ordered, strict=True) if one.kind.num_drafts is None
    }
    evens = break_evens(kinds, may_win=lambda kind: kind.name + kind.candidate in may_win)
    rate = load.workload.rate
    assert rate is not None, "a fleet's load has a rate"
    return Fleet(
        workload=Basis(path=str(load.path or ""), sha256=load.sha256),
        arrivals=str(load.workload.arrivals),
        rate=rate,
        num_requests=len(load.workload.requests),
        prompt_tokens=means.prompt_tokens,
        output_tokens=means.output_tokens,
        most_devices=most_devices,
        router=Replicas().router,
        goal=load.goal,
        options=load.options,
        price_per_hour=price_per_hour,
        kinds=tuple(kind.model_copy(update={"break_even": even}) for kind, even in zip(kinds, evens, strict=True)),
        num_replicas=count,
        is_enough=point.keeps,
        point=point,
        draft_lengths=tuple(
            draft_schedule(profile, trace, num_devices=best.kind.num_devices, max_running=load.options.max_running)
        ),
        num_simulations=num_simulations,
    )


def _described(one: Sized, num_blocks: int | None) -> ReplicaKind:
    option = one.kind.option
    return ReplicaKind(
        policy=option.policy.name,
        split=option.split,
        candidate=one.kind.candidate.describe(),
        num_devices=one.kind.num_devices,
        num_targets=one.kind.num_targets,
        num_drafts=one.kind.num_drafts,
        control=one.kind.control,
        tokens_per_s=one.kind.tokens_per_s,
        num_blocks=num_blocks,
        points=one.all_points,
        num_replicas=one.high,
        is_fewest=one.is_fewest,
    )


def described_load(
    share: Workload, load: Load, predictions: Mapping[str, LoadPrediction], *, seed: int, num_candidates: int
) -> UnderLoad:
    """Predictions for a replica's share of the load, which becomes a file next to the plan."""
    return UnderLoad(
        workload=Basis(path="", sha256=workload_sha256(share)),
        arrivals=str(share.arrivals),
        num_requests=len(share.requests),
        num_simulated=len(share.requests),
        seed=seed,
        goal=load.goal,
        options=load.options,
        num_candidates=num_candidates,
        predictions=dict(predictions),
        single_request=max(predictions.values(), key=lambda found: found.tokens_per_s),
    )
