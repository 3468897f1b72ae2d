"""Measurement of what pauses cost: forwards of the target after pauses of several lengths, on one device group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from swiftspec.engine.launcher import Launcher
from swiftspec.policies import Layout, Request
from swiftspec.policies.effects import Clock, Commit, Prefill, Program, Role
from swiftspec.profiler.benches import timeline_of
from swiftspec.profiler.programs import Measuring, verify
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase, Timeline
from swiftspec.timing.warm_up import WarmUpCost, WeightCache

_BEFORE, _AFTER = 14, 10  # forwards; the first few of those before are still warming up
_SETTLED = 8  # of those before, the last
PAUSE_REPEATS, _TRIAL_REPEATS = 3, 2
_LEAST_EXTRA = 0.05  # of a forward of one row, below which pauses cost nothing
_PROMPT_TOKENS = 16
_Array = npt.NDArray[np.float64]


class _Pause(NamedTuple):
    """Seconds of nothing before each of the first `times` forwards that follow."""

    seconds: float
    times: int = 1


_ROWS = (1, 4, 8, 16)
# Short ones before every forward, as where a target waits for its draft in every round; long ones alone, the last so
# long that all weights are evicted: without it, what that costs would be extrapolated.
_PAUSES = (_Pause(0.0015, _AFTER), _Pause(0.006), _Pause(0.05), _Pause(0.25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses(Measuring):
    """Forwards of the target without pauses, then others after pauses: for every number of rows and kind of pause."""

    rows_grid: tuple[int, ...]
    pauses: tuple[_Pause, ...]
    repeats: int

    name: ClassVar[str] = "pauses"
    layout: ClassVar[Layout] = Layout.COLOCATED
    draft_rows: ClassVar[int] = 0

    @property
    def target_rows(self) -> int:
        return max(self.rows_grid)

    def order(self) -> Iterator[tuple[int, _Pause]]:
        """Rows, and the pauses between forwards of as many rows."""
        for rows in self.rows_grid:
            for _ in range(self.repeats):
                for pause in self.pauses:
                    yield rows, pause

    def _target(self, request: Request) -> Program:
        yield Prefill(Role.TARGET, request.prompt)
        turns = count()
        for rows, pause in self.order():
            for turn in islice(turns, _BEFORE):
                yield from verify(request, rows, turn=turn)
            for number, turn in enumerate(islice(turns, _AFTER)):
                until_s = (yield from Clock()) + pause.seconds
                while number < pause.times and (yield from Clock()) < until_s:
                    pass
                yield from verify(request, rows, turn=turn)
        yield Commit((0,))


class Series(NamedTuple):
    """Forwards around the pauses of a kind, medians over the repeats. after_s, pauses_s (forwards,)."""

    rows: int
    settled_s: float
    after_s: _Array
    pauses_s: _Array


def measure_pauses(engine: Launcher, *, repeats: int, vocab_size: int) -> list[Series]:
    """Forwards around pauses, for `fit_warm_up`; none where pauses cost nothing.

    Models whose weights are far larger than any cache are as slow without a pause: a short trial tells.
    """
    trial = Pauses(rows_grid=_ROWS[:1], pauses=_PAUSES[-1:], repeats=_TRIAL_REPEATS)
    (series,) = _measured(engine, trial, vocab_size)
    if series.after_s[0] < (1 + _LEAST_EXTRA) * series.settled_s:
        return []
    return _measured(engine, Pauses(rows_grid=_ROWS, pauses=_PAUSES, repeats=repeats), vocab_size)


def _measured(engine: Launcher, pauses: Pauses, vocab_size: int) -> list[Series]:
    prompt = tuple(np.random.default_rng(0).integers(1, vocab_size, _PROMPT_TOKENS).tolist())
    return list(_series(timeline_of(engine, pauses, prompt), pauses))


def _series(timeline: Timeline, pauses: Pauses) -> Iterator[Series]:
    spans = timeline.phase(Phase.VERIFY)
    ends_s = np.array([span.end_s for span in spans])
    starts_s = np.array([span.start_s for span in spans])
    seconds = (ends_s - starts_s).reshape(-1, _BEFORE + _AFTER)
    pauses_s = (starts_s - np.r_[starts_s[0], ends_s[:-1]]).reshape(seconds.shape)[:, _BEFORE:]
    turns = list(pauses.order())
    for rows, pause in dict.fromkeys(turns):
        of_rows = [turn[0] == rows for turn in turns]
        alike = [turn == (rows, pause) for turn in turns]
        settled_s = float(np.median(seconds[of_rows, _BEFORE - _SETTLED : _BEFORE]))
        after_s = np.median(seconds[alike, _BEFORE:], axis=0)
        yield Series(rows, settled_s, after_s, np.median(pauses_s[alike], axis=0))


def fit_warm_up(series: Sequence[Series], *, degree: int) -> WarmUpCost | None:
    """The cost that explains some series best, by relative errors of their forwards; None if it is negligible.

    degree: cores of the group that they were measured on.
    """
    if not series:
        return None
    rows = sorted({each.rows for each in series})

    def cost(values: Any) -> WarmUpCost:
        *extra_s, left, evicted_s = (float(value) for value in values)
        return WarmUpCost(
            role=Role.TARGET,
            degree=degree,
            rows=tuple(rows),
            extra_s=tuple(extra_s),
            left=left,
            evicted_s=evicted_s,
            provenance=Provenance.MEASURED,
        )

    def errors(values: Any) -> _Array:
        return np.concatenate([_errors(cost(values), each) for each in series])

    first = [max(0.0, max(e.after_s[0] - e.settled_s for e in series if e.rows == each)) for each in rows]
    bounds = ([0.0] * len(rows) + [0.05, 1e-3], [max(first) * 4 + 1e-6] * len(rows) + [0.98, 1.0])
    found = least_squares(errors, [*first, 0.7, 0.015], bounds=bounds, loss="soft_l1", f_scale=0.05, x_scale="jac")
    fitted = cost(found.x)
    settled_s = min(each.settled_s for each in series)
    if fitted.extra_s[0] < _LEAST_EXTRA * settled_s:
        return None
    return fitted.model_copy(update={"median_error": float(np.median(np.abs(errors(found.x))))})


def _errors(cost: WarmUpCost, series: Series) -> _Array:
    """Relative errors of a series' forwards after its pauses."""
    cache, now_s, predicted_s = WeightCache(cost), 0.0, []
    for pause_s in series.pauses_s:
        now_s += float(pause_s)
        predicted_s.append(series.settled_s + cache.begin(Phase.VERIFY, series.rows, now_s=now_s))
        now_s += predicted_s[-1]
        cache.end(Phase.VERIFY, series.rows, now_s=now_s)
    return predicted_s / series.after_s - 1
