"""Kinds of replicas as a plan holds them, with their break-even loads."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.fleet import BreakEven, ReplicaKind
from swiftspec.planner.fleet.replica import Kind
from swiftspec.planner.fleet.sizing import Bracket

_NUM_LOADS = 400
_Speeds = npt.NDArray[np.float64]


def speed_at(kind: ReplicaKind, loads: npt.ArrayLike) -> _Speeds:
    """A user's tokens/s at loads per device; 0 above the highest load that the kind serves within the limits.

    Below the lowest simulated load it is that of the lowest.
    """
    points = kind.within
    wanted = np.asarray(loads, np.float64)
    if not points:
        return np.zeros_like(wanted)
    known = np.array([point.rate / kind.num_devices for point in points])
    speeds = np.interp(np.log(wanted), np.log(known), [point.user_tokens_per_s for point in points])
    return np.where(wanted <= known[-1] * (1 + 1e-9), speeds, 0.0)


def break_evens(kinds: Sequence[ReplicaKind], *, may_win: Sequence[bool]) -> list[BreakEven]:
    """Break-even loads of every kind.

    may_win: whether each kind counts as one that others are compared with. Plain decoding is that on whichever devices
    serve users fastest at a load.
    """
    loads = _loads(kinds)
    speeds = [speed_at(kind, loads) for kind in kinds]
    plain = _highest(speed for kind, speed in zip(kinds, speeds, strict=True) if kind.is_plain)
    best = _highest(speed for speed, counts in zip(speeds, may_win, strict=True) if counts)
    found = []
    for kind, speed, counts in zip(kinds, speeds, may_win, strict=True):
        against_plain = {} if kind.is_plain or plain is None else _against_plain(loads, speed, plain)
        leads = loads[(speed > 0) & (speed >= best)] if best is not None and counts else loads[:0]
        ranges = {"best_from": float(leads[0]), "best_to": float(leads[-1])} if leads.size else {}
        found.append(BreakEven.model_validate({**against_plain, **ranges}))
    return found


def _against_plain(loads: _Speeds, speed: _Speeds, plain: _Speeds) -> Mapping[str, float | bool]:
    """Up to which load the kind is faster, counted from the lowest load at which it is."""
    pays = (speed > plain) & (speed > 0)
    if not pays.any():
        return {}
    last = int(np.flatnonzero(pays)[-1])
    still = last + 1 < len(loads) and (speed[last + 1] > 0 or plain[last + 1] > 0)
    return {"plain_up_to": float(loads[last]), "is_open": not still}


def _highest(speeds: Iterable[_Speeds]) -> _Speeds | None:
    listed = list(speeds)
    return np.max(listed, axis=0) if listed else None


def _loads(kinds: Sequence[ReplicaKind]) -> _Speeds:
    known = [point.rate / kind.num_devices for kind in kinds for point in kind.within]
    return np.geomspace(min(known), max(known), _NUM_LOADS) if known else np.ones(1)


def described_kinds(ordered: Sequence[Bracket], room: Callable[[Kind], int | None]) -> tuple[ReplicaKind, ...]:
    """Kinds with their break-even loads. room: cache blocks of a kind's targets."""
    kinds = [_described(one, room(one.kind)) for one in ordered]
    evens = break_evens(kinds, may_win=[one.kind.num_drafts is None for one in ordered])
    return tuple(kind.model_copy(update={"break_even": even}) for kind, even in zip(kinds, evens, strict=True))


def _described(one: Bracket, num_blocks: int | None) -> ReplicaKind:
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
