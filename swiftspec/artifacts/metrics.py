"""Metrics of timelines, predicted and measured alike."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Self

import numpy as np
from pydantic import Field, field_validator

from swiftspec.files.document import Facts, Spread
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import COMPUTING, DRAFTING, VERIFYING, Phase, Span, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over requests, which suffice for their rates, so that finished requests need not be kept.

    requests, tokens, rounds: finished requests, their output tokens, and their verification rounds. verified_tokens:
    output tokens from verifications. seconds: from each request to its last token.
    """

    requests: int = 0
    tokens: int = 0
    rounds: int = 0
    verified_tokens: int = 0
    seconds: float = 0.0

    def plus(self, timeline: Timeline) -> Self:
        return replace(
            self,
            requests=self.requests + 1,
            tokens=self.tokens + timeline.num_tokens,
            rounds=self.rounds + len(timeline.round_s),
            verified_tokens=self.verified_tokens + timeline.verified_tokens,
            seconds=self.seconds + (timeline.e2e_s if timeline.commits else 0.0),
        )

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the time from request to last token; 0 without requests."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Verified tokens per verification; 0 without verifications."""
        return self.verified_tokens / max(1, self.rounds)


class Figures(Facts):
    """Metrics of timelines, predicted, measured and compared."""

    tokens_per_s: float
    round_s: Spread
    tokens_per_round: float


class Metrics(Facts):
    """Figures of a set of requests, and what explains them. A round lasts from one verification to the next.

    figures: tokens/s (output tokens over the time from request to last token, prefill included), seconds of a round,
        and tokens per round.
    num_tokens, rounds: output tokens and rounds of all requests.
    ttft_s, tpot_s: seconds to the first token, and per further token: medians over requests.
    verify_s, mean_round_s: mean seconds of a verification and of a round.
    target_busy, draft_busy, overlap_fraction: shares of the time from request to last token in which that model
        computed, the mean over target groups; and of the target's busy time in which the draft was busy, too.
    wasted_draft: share of the draft's rows beyond one per output token: rejected, or computed again; None without a
        draft.
    tail_s: seconds at the draft from a received verdict to the next subtree sent, in rounds where that took no forward.
    hit_fraction: share of such rounds, including the one that starts when the target has finished its prefill.
    drafts_per_round: the draft's forwards per round; None if not counted.
    acceptance: share of the rounds that accepted at least 1, 2, .. draft tokens: the unconditional rate of each
        position. A request's last round, which its end may have cut off, does not count. Empty in older files.
    """

    figures: Figures
    num_tokens: int = Field(ge=0)
    rounds: int = Field(ge=0)
    ttft_s: float = Field(ge=0)
    tpot_s: float = Field(ge=0)
    overlap_fraction: float
    verify_s: float = Field(ge=0)
    mean_round_s: float = Field(ge=0)
    target_busy: float
    draft_busy: float
    wasted_draft: float | None
    tail_s: Spread | None
    hit_fraction: float | None
    drafts_per_round: float | None = None
    acceptance: tuple[float, ...] = ()

    @field_validator("figures")
    @classmethod
    def _not_negative(cls, figures: Figures) -> Figures:
        """Refuse negative figures; errors have the same fields and may be negative."""
        least = min(figures.tokens_per_s, figures.tokens_per_round, figures.round_s.median, figures.round_s.p95)
        if least < 0:
            raise ValueError(f"expected no figure below 0, as {least}")
        return figures

    @property
    def acceptance_length(self) -> float:
        """Accepted draft tokens per verification, bonus excluded."""
        return self.figures.tokens_per_round - 1

    @property
    def decoding_tokens_per_s(self) -> float:
        """Verified tokens over the time of all rounds: the speed without prefill, for any length of output."""
        return self.figures.tokens_per_round / self.mean_round_s if self.mean_round_s else 0.0

    @property
    def speed_of_light(self) -> float:
        """tokens_per_round / (one target forward): tokens/s if verifications followed each other without a gap."""
        return self.figures.tokens_per_round / self.verify_s if self.verify_s else 0.0

    @property
    def light_fraction(self) -> float:
        """Share of the speed of light reached between the first verification and the last."""
        return self.verify_s / self.mean_round_s if self.mean_round_s else 0.0


def measure(timelines: Sequence[Timeline]) -> Metrics:
    """Figures of some requests, in tokens/s and seconds. ValueError if there are none, or one committed no token.

    Parameters
    ----------
    timelines : sequence of Timeline
        One for each request, simulated or measured.

    Examples
    --------
    >>> metrics = swiftspec.measure(swiftspec.simulate("plan.json"))
    >>> metrics.figures.tokens_per_round > 1
    True
    """
    if not timelines or any(not timeline.commits for timeline in timelines):
        raise ValueError("timelines are empty; at least one committed token each is needed")
    rounds = [duration for timeline in timelines for duration in timeline.round_s]
    verifying_s = sum(_seconds(timeline.phase(*VERIFYING)) for timeline in timelines)
    tails = [tail for timeline in timelines for tail in _turnarounds(timeline)]
    hit_tails = [seconds for seconds, forwards in tails if not forwards]
    busy = [_overlap(timeline) for timeline in timelines]
    target_busy_s = sum(target_s for _, target_s in busy)
    totals = reduce(Totals.plus, timelines, Totals())
    figures = Figures(
        tokens_per_s=totals.tokens_per_s,
        round_s=_spread(rounds) or Spread(median=0.0, p95=0.0),
        tokens_per_round=totals.tokens_per_round,
    )
    return Metrics(
        figures=figures,
        num_tokens=totals.tokens,
        rounds=totals.rounds,
        ttft_s=float(np.median([t.ttft_s for t in timelines])),
        tpot_s=float(np.median([t.tpot_s for t in timelines])),
        overlap_fraction=sum(both_s for both_s, _ in busy) / target_busy_s if target_busy_s else 0.0,
        verify_s=verifying_s / max(1, len(rounds)),
        mean_round_s=float(np.mean(rounds)) if rounds else 0.0,
        target_busy=_busy_share(timelines, Role.TARGET),
        draft_busy=_busy_share(timelines, Role.DRAFT),
        wasted_draft=_wasted(timelines),
        tail_s=_spread(hit_tails),
        hit_fraction=len(hit_tails) / len(tails) if tails else None,
        drafts_per_round=sum(len(t.phase(*DRAFTING)) for t in timelines) / max(1, len(rounds)),
        acceptance=_acceptance(timelines),
    )


def _acceptance(timelines: Sequence[Timeline]) -> tuple[float, ...]:
    accepted = Counter(tokens - 1 for timeline in timelines for tokens in timeline.tokens_by_round[:-1])
    most = max(accepted, default=0)
    at_least = accumulate(accepted[number] for number in range(most, 0, -1))
    return tuple(number / accepted.total() for number in at_least)[::-1]


def _busy_share(timelines: Sequence[Timeline], model: Role) -> float:
    spans = (span for timeline in timelines for span in timeline.spans if span.model is model)
    busy_s = _seconds(span for span in spans if span.phase in COMPUTING)
    num_groups = max(sum(role is model for role, _ in timeline.processes) for timeline in timelines)
    return busy_s / max(1, num_groups) / sum(timeline.e2e_s for timeline in timelines)


def _seconds(spans: Iterable[Span]) -> float:
    return sum(span.end_s - span.start_s for span in spans)


def _wasted(timelines: Sequence[Timeline]) -> float | None:
    rows = sum(span.rows for timeline in timelines for span in timeline.phase(*DRAFTING))
    tokens = sum(timeline.verified_tokens for timeline in timelines)
    return max(0.0, 1 - tokens / rows) if rows else None


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(median=float(np.median(values)), p95=float(np.percentile(values, 95)))


def _turnarounds(timeline: Timeline) -> Iterator[tuple[float, int]]:
    """(seconds from verdict received to subtree sent, forwards in between), at the draft, round by round."""
    received_s, forwards = None, 0
    for span in timeline.of(Role.DRAFT):
        if span.phase is Phase.WAIT:
            received_s, forwards = span.end_s, 0
        elif span.phase is Phase.SEND and received_s is not None:
            yield span.end_s - received_s, forwards
            received_s = None
        elif span.phase in DRAFTING:
            forwards += 1


def _overlap(timeline: Timeline) -> tuple[float, float]:
    """(seconds in which the draft's process computed while a target's did, seconds in which the targets' did)."""
    busy = COMPUTING | {Phase.COMPACT}
    draft = [span for span in timeline.of(Role.DRAFT) if span.phase in busy]
    both_s = target_s = 0.0
    for process in timeline.processes:
        if process[0] is Role.TARGET:
            target = [span for span in timeline.spans if (span.role, span.group) == process and span.phase in busy]
            both_s += _shared_s(target, draft)
            target_s += _seconds(target)
    return both_s, target_s


def _shared_s(spans: Sequence[Span], others: Sequence[Span]) -> float:
    """Seconds in which both of two processes were in one of these spans."""
    shared_s, index = 0.0, 0
    for span in spans:
        while index < len(others) and others[index].end_s <= span.start_s:
            index += 1
        for other in others[index:]:
            if other.start_s >= span.end_s:
                break
            shared_s += min(span.end_s, other.end_s) - max(span.start_s, other.start_s)
    return shared_s
