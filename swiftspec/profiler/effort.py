"""Effort of a profile: how much is measured in a given time, by how long forwards take. Pure: measures nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import TypeVar

from swiftspec.artifacts.profile import PASSES
from swiftspec.policies import Layout
from swiftspec.profiler.grids import (
    CONTEXTS,
    DRAFT_ROWS,
    HALVES_ROWS,
    HOST_TOKENS,
    REPEATS,
    SWEEP_REPEATS,
    TARGET_ROWS,
    most_host_shapes,
)

_ROUND_TOKENS = 2.0  # per round, on a profile's texts
_ROUND_ROWS, _ROUND_DRAFTS = 8, 4  # a round costs a verification and some draft forwards
_DRAFTS_PER_VERIFICATION = 4  # of a sweep, on the same devices
_ALONE = 4  # bursts of one row more than of the other sizes
_RESUMED_ROWS, _INTERRUPTED = 6, 4 * REPEATS  # rows of a verification meanwhile; verifications per context
_Context = TypeVar("_Context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Amount of a profile's measurements."""

    passes: int = PASSES  # times that everything is measured, each on new processes
    contexts: int | None = None  # lengths of the text before a forward, of those of the grid; all of them if None
    repeats: int = SWEEP_REPEATS  # forwards of every size, per pass and context
    discards: bool = True  # whether every size first runs once and is not counted: its first forward may take longer
    host_tokens: int = HOST_TOKENS  # output tokens of every policy that runs to measure the host's costs
    all_shapes: bool = True  # whether every policy runs in several shapes for that, or in one

    def of(self, contexts: Sequence[_Context]) -> list[_Context]:
        """So many of the contexts, evenly spread, the longest among them."""
        count = len(contexts) if self.contexts is None else min(self.contexts, len(contexts))
        last = len(contexts) - 1
        return [contexts[last - round(index * last / max(1, count - 1))] for index in reversed(range(count))]


FULL = Effort()
# Passes go first: other processes' slow spells have more effect then. Contexts go last: time grows evenly with them.
_LADDER = (
    FULL,
    Effort(passes=2),
    Effort(passes=1),
    Effort(passes=1, repeats=3, host_tokens=24, all_shapes=False),
    Effort(passes=1, repeats=3, discards=False, host_tokens=16, all_shapes=False),
    Effort(passes=1, contexts=3, repeats=3, discards=False, host_tokens=12, all_shapes=False),
    Effort(passes=1, contexts=2, repeats=3, discards=False, host_tokens=12, all_shapes=False),
    Effort(passes=1, contexts=2, repeats=2, discards=False, host_tokens=10, all_shapes=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of both models' forwards, of each token of a prompt for both together, and of an engine's start.

    Forwards by number of rows: means, not medians, which grow on a busy machine, as what is estimated will.
    """

    target: Mapping[int, float]
    draft: Mapping[int, float]
    prompt_token_s: float
    start_s: float


def pass_seconds(effort: Effort, pace: Pace, layouts: Sequence[Layout], contexts: Sequence[int] = CONTEXTS) -> float:
    """Estimated seconds of one pass over benches of these layouts."""
    return sum(_bench_seconds(effort, pace, layout, effort.of(contexts)) for layout in layouts)


def _bench_seconds(effort: Effort, pace: Pace, layout: Layout, contexts: Sequence[int]) -> float:
    target_s, draft_s = (partial(_forward_s, seconds) for seconds in (pace.target, pace.draft))
    repeats = effort.repeats + effort.discards
    verified_s = sum(map(target_s, TARGET_ROWS))
    if layout is Layout.COLOCATED:
        drafted_s = _DRAFTS_PER_VERIFICATION * len(TARGET_ROWS) * draft_s(mean(DRAFT_ROWS))
        context_s = repeats * (2 * verified_s + _ALONE * target_s(1) + drafted_s)
        prompts = 2 * (1 + effort.discards)
    else:
        context_s = repeats * (verified_s + sum(map(target_s, HALVES_ROWS)))
        context_s += (REPEATS * len(DRAFT_ROWS) + _INTERRUPTED) * target_s(_RESUMED_ROWS)
        prompts = 3 + effort.discards
    read_s = prompts * sum(contexts) * pace.prompt_token_s
    # Policies that run to measure a round's costs other than forwards.
    rounds_s = effort.host_tokens / _ROUND_TOKENS * (target_s(_ROUND_ROWS) + _ROUND_DRAFTS * draft_s(_ROUND_ROWS))
    host_s = most_host_shapes(all_shapes=effort.all_shapes) * (rounds_s + CONTEXTS[1] * pace.prompt_token_s)
    return pace.start_s + len(contexts) * context_s + read_s + host_s


def _forward_s(seconds: Mapping[int, float], rows: float) -> float:
    """Seconds of a forward, linear in rows between those measured; they never fall as rows grow."""
    points = sorted(seconds.items())
    if len(points) == 1:
        return points[0][1]
    segments = list(pairwise(points))
    (fewer, fewer_s), (more, more_s) = next((pair for pair in segments if rows <= pair[1][0]), segments[-1])
    return max(fewer_s, fewer_s + (rows - fewer) / (more - fewer) * (more_s - fewer_s))


class Schedule:
    """A profile's effort within a time, chosen by a first look, and lowered if that was too hopeful.

    layouts: of the benches of a pass, in their order. within_s: seconds for all of it. most_passes: of the device.
    contexts: the grid's.
    effort: that of the next bench.
    """

    def __init__(
        self, pace: Pace, layouts: Sequence[Layout], *, within_s: float, most_passes: int, contexts: Sequence[int]
    ) -> None:
        self._layouts, self._within_s = layouts, within_s
        self._pass_s = partial(pass_seconds, pace=pace, contexts=contexts)
        ladder = [replace(effort, passes=min(effort.passes, most_passes)) for effort in _LADDER]
        fitting = (effort for effort in ladder if effort.passes * self._pass_s(effort, layouts=layouts) <= within_s)
        self.effort = next(fitting, ladder[-1])
        self._lower = [effort for effort in ladder if effort.contexts == self.effort.contexts]

    def note(self, done: int, *, spent_s: float) -> None:
        """Choose again in a first pass, of which so many benches have taken so long."""
        pace = spent_s / self._pass_s(self.effort, layouts=self._layouts[:done])
        left_s, left = self._within_s - spent_s, self._layouts[done:]
        lower = self._lower[self._lower.index(self.effort) :]
        self.effort = next((one for one in lower if pace * self._pass_s(one, layouts=left) <= left_s), lower[-1])

    def has_time(self, passes: int, *, spent_s: float) -> bool:
        """Whether another pass is wanted and fits, after so many have taken so long."""
        return passes < self.effort.passes and spent_s * (passes + 1) / passes <= self._within_s


def left_out(effort: Effort, *, most_passes: int = PASSES, contexts: Sequence[int] = CONTEXTS) -> list[str]:
    """What a shorter profile has less of, clauses; empty if it lacks nothing."""
    counts = (
        (effort.passes, most_passes, "passes"),
        (len(effort.of(contexts)), len(contexts), "contexts"),
        (effort.repeats, FULL.repeats, "forwards of each size"),
        (effort.host_tokens, FULL.host_tokens, "tokens of each policy"),
    )
    return [f"{had} of {every} {what}" for had, every, what in counts if had < every]
