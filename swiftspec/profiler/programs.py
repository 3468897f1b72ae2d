"""Measuring programs: role programs like a policy's, so that steps are timed by the driver that will run the plan."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, repeat
from typing import ClassVar

from swiftspec.policies.base import DraftKind, Layout, Policy, sends_features
from swiftspec.policies.effects import (
    Commit,
    DraftForward,
    KeepKV,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Send,
    Stop,
    Subprogram,
    TargetExit,
    TargetFinish,
    TargetForward,
    Verdict,
)
from swiftspec.policies.request import Request

# Policies run several draft forwards of one size: after one of another size a forward takes up to 15 % longer.
IN_A_ROW = 3
# Plain decoding runs one row alone hundreds of times, and the first ten of a burst still find memory slow (3 to 5 %).
_BURSTS_ALONE = 5
_FEW_ROWS = 6  # of a verification during which something else is measured
SIGNAL = Verdict(())
NUM_CANDIDATES = 8  # kept per node by the policies' default shapes


class Measuring(Policy):
    """Defaults for a measuring program, which no planner searches: one for each role, or one for both, as the target's.

    With a head apart from its target, programs read the prompt without its last token: as many features are due with
    the first verdict.
    """

    __slots__ = ()
    drafts: ClassVar[frozenset[DraftKind]] = frozenset(DraftKind)
    verifies_trees: ClassVar[bool] = False

    @property
    def expand_rows(self) -> int:
        return self.draft_rows

    def programs(self, request: Request) -> dict[Role, Program]:
        if self.layout is not Layout.DISAGGREGATED:
            return {Role.TARGET: self._target(request)}
        read = replace(request, prompt=request.prompt[:-1]) if sends_features(self) else request
        return {Role.TARGET: self._target(read), Role.DRAFT: self._draft(read)}

    @abstractmethod
    def _target(self, request: Request) -> Program:
        """The target's program, or that of both models."""

    def _draft(self, request: Request) -> Program:
        """The draft's program, if it is apart."""
        raise NotImplementedError

    def _target_reads(self, request: Request) -> Subprogram[None]:
        """A target's prefill of all of a request's prompt, and its features for the draft if it needs them."""
        yield Prefill(Role.TARGET, request.prompt)
        if sends_features(self):
            yield Send(SIGNAL)

    def _draft_reads(self, request: Request) -> Subprogram[None]:
        """A draft's prefill of all of a request's prompt, once it has the features if it needs them."""
        if sends_features(self):
            yield Receive()
        yield Prefill(Role.DRAFT, request.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep(Measuring):
    """`repeats` forwards of every row count, most rows first, with the request's prompt as prefix.

    Forwards of a policy follow others of their size. It matters: memory is slower for some 20 ms after forwards of many
    rows, which compute more than they read (one row took 3.9 ms after 32 rows, and 2.3 ms among its like). So sizes
    follow in the order in which reading gains on computing, prefills first.
    """

    target_rows_grid: tuple[int, ...]
    draft_rows_grid: tuple[int, ...]
    halves_rows_grid: tuple[int, ...]
    repeats: int

    @property
    def target_rows(self) -> int:
        return max(self.target_rows_grid)

    @property
    def draft_rows(self) -> int:
        return max(self.draft_rows_grid)

    def _in_order(self, grid: tuple[int, ...]) -> Iterator[int]:
        for rows in sorted(grid, reverse=True):
            yield from repeat(rows, self.repeats)


class AlternatingSweep(_Sweep):
    """Both models on one group, in turn, as a co-located policy uses them."""

    name: ClassVar[str] = "alternating_sweep"
    layout: ClassVar[Layout] = Layout.COLOCATED

    def _target(self, request: Request) -> Program:
        yield Prefill(Role.TARGET, request.prompt)
        yield Prefill(Role.DRAFT, request.prompt)
        # One row alone is what plain decoding verifies, which has no draft.
        verified = [rows for rows in self._in_order(self.target_rows_grid) if rows > 1]
        drafted = sorted(self.draft_rows_grid, reverse=True)
        for number, rows in enumerate(verified):
            yield from verify(request, rows, turn=number)
            draft_rows = drafted[number * len(drafted) // len(verified)]
            # The first one finds the draft's weights evicted.
            for _ in range(1 + IN_A_ROW):
                yield from expand(request, draft_rows, fuzzy=number % 2 == 1)
        yield Commit((0,))


class TargetSweep(_Sweep):
    """The target alone, as policies without a draft use it: none evicts its weights."""

    name: ClassVar[str] = "target_sweep"
    layout: ClassVar[Layout] = Layout.COLOCATED

    def _target(self, request: Request) -> Program:
        yield Prefill(Role.TARGET, request.prompt)
        alone = repeat(1, (_BURSTS_ALONE - 1) * self.repeats) if 1 in self.target_rows_grid else ()
        for turn, rows in enumerate((*self._in_order(self.target_rows_grid), *alone)):
            yield from verify(request, rows, turn=turn)
        yield Commit((0,))


class OverlappedSweep(_Sweep):
    """Each model on its own group; the draft runs for as long as the target does, so that both see a busy peer."""

    name: ClassVar[str] = "overlapped_sweep"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    def _target(self, request: Request) -> Program:
        yield from self._target_reads(request)
        for turn, rows in enumerate(self._in_order(self.target_rows_grid)):
            yield from verify(request, rows, turn=turn)
        for turn, rows in enumerate(self._in_order(self.halves_rows_grid)):
            yield from TargetExit(verified_rows(request, rows, turn=turn), NUM_CANDIDATES)
            yield from TargetFinish()
            yield KeepKV(Role.TARGET, (), 0)
        yield Send(Stop())
        yield Commit((0,))

    def _draft(self, request: Request) -> Program:
        yield from self._draft_reads(request)
        yield from expand_until_told(request, self.draft_rows_grid)


class Resumptions(_Sweep):
    """The draft waits for a verification, then runs one forward: every row count in turn, cold."""

    name: ClassVar[str] = "resumptions"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    def _target(self, request: Request) -> Program:
        yield from self._target_reads(request)
        for turn in range(self.repeats * len(self.draft_rows_grid)):
            yield from verify(request, _FEW_ROWS, turn=turn)
            yield Send(SIGNAL)
        yield Send(Stop())
        yield Commit((0,))

    def _draft(self, request: Request) -> Program:
        yield from self._draft_reads(request)
        for rows in cycle(self.draft_rows_grid):
            if (yield Receive()) != SIGNAL:
                return
            yield from expand(request, rows)


class Interruptions(_Sweep):
    """The draft is always busy: it sends nothing during one verification, and a message per forward during the next."""

    name: ClassVar[str] = "interruptions"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED

    def _target(self, request: Request) -> Program:
        yield from self._target_reads(request)
        for turn in range(2 * self.repeats * len(self.target_rows_grid)):
            yield from verify(request, _FEW_ROWS, turn=turn)
            yield Send(SIGNAL)  # the draft switches between sending and not
            while (yield Poll()) is not None:
                pass
        yield Send(Stop())
        yield Commit((0,))

    def _draft(self, request: Request) -> Program:
        yield from self._draft_reads(request)
        sends = False
        while True:
            yield from expand(request, 1)
            message = yield Poll()
            if message == SIGNAL:
                sends = not sends
            elif message is not None:
                return
            if sends:
                yield Send(SIGNAL)


# The same with a head apart from its target.
class HeadSweep(OverlappedSweep):
    name: ClassVar[str] = "head_sweep"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})


class HeadResumptions(Resumptions):
    name: ClassVar[str] = "head_resumptions"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})


class HeadInterruptions(Interruptions):
    name: ClassVar[str] = "head_interruptions"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})


def verified_rows(request: Request, num_rows: int, *, turn: int = 0) -> tuple[Row, ...]:
    """Rows of a chain, which cost as much as a tree's: time depends on their number, not on the mask.

    Their tokens are the prompt's, each turn the next ones: equal tokens would need few of a mixture's experts, and the
    same ones as before would find their experts in the cache.
    """
    prompt, length, first = request.prompt, len(request.prompt), turn * num_rows
    return tuple(Row(prompt[(first + i) % length], length + i, (1 << i) - 1) for i in range(num_rows))


def verify(request: Request, num_rows: int, *, turn: int = 0) -> Subprogram[None]:
    """A verification of so many rows after the prompt, none of which is kept. turn: as of `verified_rows`."""
    yield from TargetForward(verified_rows(request, num_rows, turn=turn))
    yield KeepKV(Role.TARGET, (), 0)


def expand(request: Request, num_rows: int, *, fuzzy: bool = False) -> Subprogram[None]:
    """An expansion of so many rows after the prompt, none of which is kept.

    With a mask token all rows but the first are masks: a block drafter computes no others.
    """
    root, *others = verified_rows(request, num_rows)
    if request.mask_token >= 0:
        others = [row._replace(token=request.mask_token) for row in others]
    yield from DraftForward((root, *others), NUM_CANDIDATES, fuzzy=fuzzy)
    yield KeepKV(Role.DRAFT, (), 0)


def expand_until_told(request: Request, grid: Iterable[int]) -> Subprogram[None]:
    """Expansions of each row count in turn, several in a row, until a message of the target has come."""
    for rows in cycle(grid):
        for _ in range(2 * IN_A_ROW):
            if (yield Poll()) is not None:
                return
            yield from expand(request, rows)
