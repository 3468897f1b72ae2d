"""Measuring programs whose requests share steps: the scheduler batches them as it does those of any policy.

All requests of a sweep read their prompts, wait for each other, and then go through the same row counts together. A
stage with half as many requests follows, and so on down to one request, whose forwards have as many rows as steps of
several had. They follow within seconds, so that both are measured on the same machine, however that drifts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar

from swiftspec.policies.base import DraftKind, Layout
from swiftspec.policies.effects import Clock, Commit, Poll, Prefill, Program, Role, Send, Stop, Subprogram
from swiftspec.policies.request import Request
from swiftspec.profiler.programs import IN_A_ROW, SIGNAL, Measuring, expand, verify
from swiftspec.scheduler.batching import BatchLimits

MOST_ROWS = BatchLimits().max_rows  # of a step
_ROWS_EACH = (8, 4, 1)


def stages(num_requests: int) -> list[int]:
    """Numbers of requests that share steps: the powers of two up to `num_requests`, most first."""
    return [1 << power for power in reversed(range(num_requests.bit_length()))]


def rows_each(sharing: int, num_requests: int) -> list[int]:
    """Rows of each request's forwards in a stage, most first. One alone has as many as all had in other stages."""
    if sharing > 1:
        return [rows for rows in _ROWS_EACH if rows * sharing <= MOST_ROWS]
    others = stages(num_requests)[:-1]
    return sorted({more * rows for more in others for rows in rows_each(more, num_requests)}, reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing(Measuring):
    """One of the requests that share steps."""

    index: int  # place among them; the later half ends after each stage
    num_requests: int  # of the first stage
    begin_s: float  # time of the driver's clock when all have read their prompts; until then they compute single rows
    repeats: int  # forwards of every row count

    @property
    def target_rows(self) -> int:
        return MOST_ROWS

    @property
    def draft_rows(self) -> int:
        return MOST_ROWS

    def _stages(self) -> Iterator[Sequence[int]]:
        """Rows of this request's forwards in each stage that it takes part in."""
        for sharing in stages(self.num_requests):
            if self.index < sharing:
                yield rows_each(sharing, self.num_requests)


class ColocatedSharing(_Sharing):
    """Both models on one group, in turn."""

    name: ClassVar[str] = "colocated_sharing"
    layout: ClassVar[Layout] = Layout.COLOCATED

    def _target(self, request: Request) -> Program:
        yield Prefill(Role.TARGET, request.prompt)
        yield Prefill(Role.DRAFT, request.prompt)
        # Others read their prompts beside forwards of the same model only.
        while (yield from Clock()) < self.begin_s:
            yield from verify(request, 1)
            yield from expand(request, 1)
        for grid in self._stages():
            for rows in grid:
                for turn in range(self.repeats):
                    # Drafts go first: a request that is a step behind catches up before the next verification.
                    yield from verify(request, rows, turn=turn)
                    for _ in range(IN_A_ROW):
                        yield from expand(request, rows)
        yield Commit((0,))


class DisaggregatedSharing(_Sharing):
    """Each model on its own group; drafts run for as long as their targets do, so that both see a busy peer."""

    name: ClassVar[str] = "disaggregated_sharing"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    def _target(self, request: Request) -> Program:
        yield from self._target_reads(request)
        while (yield from Clock()) < self.begin_s:
            yield from verify(request, 1)
        for grid in self._stages():
            for rows in grid:
                for turn in range(self.repeats):
                    yield from verify(request, rows, turn=turn)
            yield Send(SIGNAL)  # the next stage
        yield Send(Stop())
        yield Commit((0,))

    def _draft(self, request: Request) -> Program:
        yield from self._draft_reads(request)
        while (yield from Clock()) < self.begin_s:
            yield from expand(request, 1)
        for grid in self._stages():
            yield from _expand_until_signal(request, grid)
        while (yield Poll()) is None:  # the target's Stop follows its last signal
            yield from expand(request, 1)


class HeadSharing(DisaggregatedSharing):
    """As `DisaggregatedSharing`, with a head apart from its target."""

    name: ClassVar[str] = "head_sharing"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})


def _expand_until_signal(request: Request, grid: Sequence[int]) -> Subprogram[None]:
    for rows in cycle(grid):
        for _ in range(2 * IN_A_ROW):
            if (yield Poll()) is not None:
                return
            yield from expand(request, rows)
