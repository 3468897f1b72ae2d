"""Loads at which a kind of replica pays: against plain decoding, and against all others, at the same load per device.

Whoever does not keep the limits at a load does not serve it.
Speeds between simulated loads are interpolated linearly in the logarithm of the load.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.fleet import BreakEven, ReplicaKind

__all__ = ["break_evens", "speed_at"]

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


def break_evens(kinds: Sequence[ReplicaKind], *, may_win: Callable[[ReplicaKind], bool]) -> list[BreakEven]:
    """Break-even loads of every kind.

    may_win: whether a kind counts as one that others are compared with. Plain decoding is that on whichever devices
    serve users fastest at a load.
    """
    loads = _loads(kinds)
    speeds = [speed_at(kind, loads) for kind in kinds]
    plain = _highest(speed for kind, speed in zip(kinds, speeds, strict=True) if kind.is_plain)
    best = _highest(speed for kind, speed in zip(kinds, speeds, strict=True) if may_win(kind))
    found = []
    for kind, speed in zip(kinds, speeds, strict=True):
        against_plain = {} if kind.is_plain or plain is None else _against_plain(loads, speed, plain)
        leads = loads[(speed > 0) & (speed >= best)] if best is not None and may_win(kind) else loads[:0]
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
