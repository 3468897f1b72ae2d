"""Timeline: spans of each role's activity. Simulator and engine emit the same kind; `metrics` measures them.

A server tells them to a client as JSON.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from pydantic import TypeAdapter

from swiftspec.files.document import Facts
from swiftspec.files.reading import shown
from swiftspec.policies.effects import Role


class Phase(StrEnum):
    """Phase of a span; the same names simulated and measured. A poll that finds nothing is no span."""

    PREFILL = "prefill"
    EXPAND = "expand"  # one draft forward
    FUZZY = "fuzzy"  # one draft forward, layers in groups
    VERIFY = "verify"  # one target forward
    EXIT = "exit"  # the first half of one
    FINISH = "finish"  # the other half
    COMPACT = "compact"  # KV of kept slots moves
    SEND = "send"
    WAIT = "wait"  # until the peer's message is there; a poll that finds one counts
    COMMIT = "commit"
    ARRIVE = "arrive"  # of a message at a process that computes: a cost, never a span


DRAFTING = frozenset({Phase.EXPAND, Phase.FUZZY})
VERIFYING = frozenset({Phase.VERIFY, Phase.EXIT, Phase.FINISH})
COMPUTING = frozenset({Phase.PREFILL, *DRAFTING, *VERIFYING})
SHARE_OF_LAYERS = {Phase.EXIT: 0.5, Phase.FINISH: 0.5}  # that a forward computes; any other has all

_LATEST_S = 1e10  # 300 years after a machine's start
_MOST_SPANS = 500_000  # an empty list takes a hundred times the memory of its text


class Span(NamedTuple):
    """One phase of one process, `role`. `model` has the forward or cache; a co-located process has both models.

    `group` tells several target groups apart.
    """

    role: Role
    phase: Phase
    model: Role
    rows: int
    tokens: int
    start_s: float
    end_s: float
    group: int = 0


class Excerpt(NamedTuple):
    """Spans of some rounds, cut at their beginning and end, and all processes, including those without a span here."""

    start_s: float
    end_s: float
    spans: tuple[Span, ...]
    processes: list[tuple[Role, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Activity of each process over time, for one request, simulated or measured.

    Parameters
    ----------
    request : str
        The prompt's id.
    start_s : float
        When the request was handed to the processes, in seconds; they share the clock.
    spans : tuple of Span
        Phases with their start and end in seconds. Those of one process are in order of time and do not overlap.

    Examples
    --------
    >>> timeline = swiftspec.simulate("plan.json")[0]
    >>> timeline.num_tokens, timeline.ttft_s
    (..., 0...)
    """

    request: str
    start_s: float
    spans: tuple[Span, ...]

    def of(self, role: Role) -> list[Span]:
        """Spans of the processes that run this role."""
        return [span for span in self.spans if span.role is role]

    @property
    def processes(self) -> list[tuple[Role, int]]:
        """Role and group of every process, targets first."""
        return targets_first({(span.role, span.group) for span in self.spans})

    @property
    def process_names(self) -> list[str]:
        """`target`, `draft`; with the group if there are several targets."""
        return [f"{role} {group}" if (role, 1) in self.processes else role.value for role, group in self.processes]

    def phase(self, *phases: Phase) -> list[Span]:
        """All spans of some phases, in order of time."""
        return sorted((span for span in self.spans if span.phase in phases), key=lambda span: span.start_s)

    @property
    def verifications_s(self) -> list[float]:
        """Start of each verification."""
        return [span.start_s for span in self.phase(Phase.VERIFY, Phase.EXIT)]

    @property
    def commits(self) -> list[Span]:
        """Spans in which tokens reached the user, with their number."""
        return self.phase(Phase.COMMIT)

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(span.tokens for span in self.commits)

    @property
    def ttft_s(self) -> float:
        """Request to first token."""
        return self.commits[0].end_s - self.start_s

    @property
    def e2e_s(self) -> float:
        """Request to last token."""
        return self.commits[-1].end_s - self.start_s

    @property
    def tpot_s(self) -> float:
        """(E2E - TTFT) / (n - 1), as vLLM defines it; 0 for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.num_tokens - 1) if self.num_tokens > 1 else 0.0

    @property
    def round_s(self) -> list[float]:
        """Verification to verification; the last one ends with its commit, and is no round without one."""
        bounds, commits = self.verifications_s, self.commits
        if bounds and commits:
            bounds.append(commits[-1].end_s)
        return [end - start for start, end in pairwise(bounds)]

    def excerpt(self, *, first: int = 5, num_rounds: int = 10) -> Excerpt:
        """Rounds from number `first` on (0 is the first), or the last `num_rounds`; everything if there are none."""
        starts_s = self.verifications_s
        first = max(0, min(first, len(starts_s) - num_rounds))
        window = [*starts_s, self.e2e_s + self.start_s][first : first + num_rounds + 1]
        start_s, end_s = (window[0], window[-1]) if starts_s else (self.start_s, window[-1])
        spans = tuple(
            span._replace(start_s=max(span.start_s, start_s), end_s=min(span.end_s, end_s))
            for span in self.spans
            if span.end_s > start_s and span.start_s < end_s
        )
        return Excerpt(start_s, end_s, spans, self.processes)

    @property
    def tokens_by_round(self) -> list[int]:
        """Tokens of each verification; autoregressive decoding has its first token from the prefill."""
        starts_s = self.verifications_s
        return [span.tokens for span in self.commits if starts_s and span.start_s >= starts_s[0]]

    @property
    def verified_tokens(self) -> int:
        """Tokens from verifications."""
        return sum(self.tokens_by_round)


def targets_first(processes: Iterable[tuple[Role, int]]) -> list[tuple[Role, int]]:
    """Processes by role and group, targets first."""
    return sorted(processes, key=lambda process: (list(Role).index(process[0]), process[1]))


class _Timeline(Facts):  # Facts stop at the first wrong item of millions
    request: str
    start_s: float
    spans: tuple[Span, ...]


class _Timelines(Facts):
    timelines: tuple[_Timeline, ...]


def timelines_as_json(timelines: Iterable[Timeline]) -> bytes:
    """Timelines as JSON; `timelines_from_json` reads it."""
    return TypeAdapter(list[Timeline]).dump_json([*timelines])


def timelines_from_json(content: bytes) -> list[Timeline]:
    """Timelines that `timelines_as_json` wrote, of which none has impossible spans. ValueError for anything else."""
    if content.count(b"[") + content.count(b"{") > _MOST_SPANS:
        raise ValueError(f"timelines have more than {_MOST_SPANS:,} spans, the most that are read")
    found = _Timelines.model_validate_json(b'{"timelines":%b}' % content).timelines
    for timeline in found:
        if not all(_is_possible(span, timeline.start_s) for span in timeline.spans):
            raise ValueError(f"the timeline of {shown(timeline.request)} has impossible spans")
    return [Timeline(request=each.request, start_s=each.start_s, spans=each.spans) for each in found]


def _is_possible(span: Span, start_s: float) -> bool:
    if not (-_LATEST_S < span.start_s <= span.end_s < _LATEST_S and min(span.rows, span.tokens, span.group) >= 0):
        return False
    if span.phase is Phase.COMMIT:
        return span.end_s > start_s
    return span.phase not in COMPUTING or (span.rows > 0 and span.end_s > span.start_s)
