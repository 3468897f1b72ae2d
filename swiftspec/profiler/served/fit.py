"""Fit of a server's steps: rows, sequences, what they attend to, and draft forwards, each with its seconds.

A step of R rows takes g(R), broken straight between the sizes that were measured, and so much for every sequence, for
every token in the caches, and for every pair of tokens that a prompt attends to. Verifying adds a constant, and
drafting one for each forward, each of its rows and each token of its cache. No coefficient is below 0.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from swiftspec.profiler.served.probes import Drafting, Measured, Probe, PromptProbe, PromptTime, Work

_KNOTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Coefficients(NamedTuple):
    """Seconds of what a step has."""

    sequence_s: float
    cached_s: float  # of a token in the caches
    pair_s: float  # of a pair of tokens that a prompt attends to
    lookup_s: float  # of a step that verifies looked-up tokens
    round_s: float  # of a step that verifies drafted ones
    draft_s: float  # of a draft forward
    draft_row_s: float
    draft_cached_s: float  # of a token in the draft's caches


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSteps:
    """Seconds of steps. rows, rows_s: g."""

    rows: Sequence[int]
    rows_s: Sequence[float]
    coefficients: Coefficients

    def forward_s(self, rows: float) -> float:
        """Seconds of so many rows, on a straight line beyond the last ones."""
        return float(np.dot(_hats(rows, self.rows), self.rows_s))

    def seconds(self, work: Work) -> float:
        return self.forward_s(work.rows + work.read) + float(_others(work) @ np.array(self.coefficients))


def typical(measured: Iterable[Measured]) -> list[Measured]:
    """The median of what was measured several times, of their mean work."""
    groups: dict[tuple[Drafting, Probe | PromptProbe], list[Measured]] = defaultdict(list)
    for one in measured:
        groups[one.work.drafting, one.probe].append(one)
    return [
        Measured(probe, _mean_work([one.work for one in group]), median(one.seconds for one in group))
        for (_, probe), group in groups.items()
    ]


def fit_steps(measured: Sequence[Measured]) -> FittedSteps:
    """The steps of least relative squares."""
    works, seconds = [one.work for one in measured], np.array([one.seconds for one in measured])
    sizes = [work.rows + work.read for work in works]
    # Powers of two up to the largest step, where a step lies near each.
    knots = [1, *(knot for knot in _KNOTS[1:] if any(knot / 1.5 <= size < knot * 1.5 for size in sizes))]
    columns = np.array([_columns(work, knots) for work in works]) / seconds[:, None]
    found, _ = nnls(columns, np.ones(len(works)))
    return FittedSteps(
        rows=knots,
        rows_s=np.cumsum(found[: len(knots)]).tolist(),
        coefficients=Coefficients(*found[len(knots) :].tolist()),
    )


def fit_above(times: Iterable[PromptTime]) -> tuple[float, float]:
    """Seconds of a request between its client and its engine, and of each of its prompt's tokens there.

    By the median of each prompt's length.
    """
    groups: dict[int, list[float]] = defaultdict(list)
    for one in times:
        groups[one.tokens].append(max(0.0, one.client_s - one.engine_s))
    if not groups:
        return 0.0, 0.0
    columns = np.array([[1.0, tokens] for tokens in groups])
    found, _ = nnls(columns, np.array([median(each) for each in groups.values()]))
    return float(found[0]), float(found[1])


def _mean_work(works: Sequence[Work]) -> Work:
    def mean(name: str) -> float:
        return float(np.mean([getattr(work, name) for work in works]))

    return works[0]._replace(rows=mean("rows"), cache_tokens=mean("cache_tokens"), levels=mean("levels"))


def _hats(rows: float, knots: Sequence[int]) -> npt.NDArray[np.float64]:
    """Weights of the knots at a number of rows."""
    weights = np.zeros(len(knots))
    if len(knots) == 1 or rows <= knots[0]:
        weights[0] = 1.0
        return weights
    right = min(int(np.searchsorted(knots, rows)), len(knots) - 1)
    share = (rows - knots[right - 1]) / (knots[right] - knots[right - 1])
    weights[right - 1], weights[right] = 1 - share, share
    return weights


def _columns(work: Work, knots: Sequence[int]) -> npt.NDArray[np.float64]:
    """What of each coefficient a step has; those of rows are what each knot takes more than the one before."""
    growth = np.cumsum(_hats(work.rows + work.read, knots)[::-1])[::-1]
    return np.concatenate([growth, _others(work)])


def _others(work: Work) -> npt.NDArray[np.float64]:
    """What of each of the `Coefficients` a step has."""
    drafts = work.drafting is Drafting.DRAFT and work.sequences > 0
    looks_up = work.drafting is Drafting.LOOKUP and work.sequences > 0
    levels = work.levels if drafts else 0.0
    has_read = work.read > 0
    others = (
        work.sequences + has_read,
        work.cache_tokens + work.read_before,
        work.read * (work.read_before + work.read / 2),
        looks_up,
        drafts,
        levels,
        levels * work.sequences,
        levels * work.cache_tokens,
    )
    return np.array(others, float)
