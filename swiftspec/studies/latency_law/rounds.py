"""Costs of requests derived from two runs: one client, and a closed loop of as many clients as may run at once.

A round lasts from one verification to the next. With B requests decoding and P prompt tokens of others read meanwhile
it takes T(B, P) = T(1, 0) + b (B - 1) + c P seconds: T(1, 0) is the mean round of the first run, b and c fit the rounds
of the second one. A request of N rounds whose prompt has p tokens then has C1 = its latency alone, and C2 = N b + p c.
Where a full step grants fewer rows than were asked for, requests need more rounds: each of the B - 1 others has its
share of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftspec.policies.effects import Role
from swiftspec.studies.latency_law.speculation import Cost, RequestCosts
from swiftspec.timing.timeline import DRAFTING, Phase, Span, Timeline

_VERIFYING = frozenset({Phase.VERIFY, Phase.EXIT, Phase.FINISH})
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundTable:
    """Rounds of all requests of a run, and means over these requests.

    Attributes
    ----------
    seconds : array (rounds, 3)
        Seconds of verifications, of draft forwards on the target's devices, and of the rest. Draft forwards on devices
        of their own overlap with verifications: only what a round waits for them is in it, in the rest.
    num_decoding : array (rounds,)
        Requests between their first verification and their last token, this one included: the mean over the round.
    prompt_rows : array (rounds,)
        Prompt tokens of others that the target read meanwhile.
    rounds, drafts, prompt_tokens : float
        Means over requests: rounds, draft forwards on the target's devices in a round, and rows of the prompt.
    prefill_s, e2e_s : float
        Means over requests: until the first verification, without draft forwards, and until the last token.
    """

    seconds: _Array
    num_decoding: _Array
    prompt_rows: _Array
    rounds: float
    drafts: float
    prompt_tokens: float
    prefill_s: float
    e2e_s: float

    @classmethod
    def of(cls, timelines: Sequence[Timeline]) -> "RoundTable | None":
        """Rounds of a run; None if they cannot be told apart.

        That is so if a request has no verification, was computed again after it gave way, or several groups verify.
        """
        if not timelines or any(not _is_plain(timeline) for timeline in timelines):
            return None
        bounds = [np.array([*each.verifications_s, each.commits[-1].end_s]) for each in timelines]
        starts_s, ends_s = (np.concatenate(part) for part in zip(*((b[:-1], b[1:]) for b in bounds), strict=True))
        verify_s, _ = _within(timelines, bounds, _VERIFYING)
        draft_s, before_s = _within(timelines, bounds, DRAFTING)
        rest_s = ends_s - starts_s - verify_s - draft_s
        # A request's first drafts come before its first round, and its last round has none: they are counted there.
        draft_s[np.cumsum([len(b) - 1 for b in bounds]) - 1] += before_s
        num_drafts = sum(len(_own(each, DRAFTING)) for each in timelines)
        prompts = [span for each in timelines for span in _prompt(each)]
        waits_s = [b[0] - each.start_s for each, b in zip(timelines, bounds, strict=True)]
        return cls(
            seconds=np.stack([verify_s, draft_s, rest_s], axis=1),
            num_decoding=_mean_number(bounds, starts_s, ends_s),
            prompt_rows=_rows_between(prompts, starts_s, ends_s),
            rounds=len(starts_s) / len(timelines),
            drafts=num_drafts / len(starts_s),
            prompt_tokens=sum(span.rows for span in prompts) / len(timelines),
            prefill_s=float(np.mean(waits_s) - np.mean(before_s)),
            e2e_s=float(np.mean([each.e2e_s for each in timelines])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedCosts:
    """Costs of a request's parts, and how often a request needs them.

    Parameters
    ----------
    costs : RequestCosts
    rounds : float
        Of a request that is alone.
    drafts : float
        Draft forwards of a round that it waits for.
    """

    costs: RequestCosts
    rounds: float
    drafts: float

    @property
    def total(self) -> Cost:
        """C1 and C2."""
        return self.costs.total(output_tokens=self.rounds, num_draft_tokens=self.drafts)


def derive_costs(alone: RoundTable, saturating: RoundTable) -> DerivedCosts | None:
    """Costs from the rounds of a synchronous and of a saturating run of the same requests.

    None if each round of the second one was alone.
    """
    alone_s = alone.seconds.mean(axis=0)
    others = saturating.num_decoding - 1
    if not others.max() > 0:
        return None
    columns = np.stack([others, saturating.prompt_rows], axis=1)
    (each_s, row_s), *_ = np.linalg.lstsq(columns, saturating.seconds - alone_s, rcond=None)  # by part
    more_rounds = saturating.rounds / alone.rounds - 1
    each_s = each_s + more_rounds * (each_s + alone_s / others.mean())
    verify, drafts, rest = (Cost(*both) for both in zip(alone_s.tolist(), each_s.tolist(), strict=True))
    return DerivedCosts(
        costs=RequestCosts(
            prefill=Cost(alone.prefill_s, alone.prompt_tokens * float(row_s.sum())),
            verify=verify,
            draft=drafts.times(1 / alone.drafts) if alone.drafts else Cost(0.0, 0.0),
            rest=rest,
        ),
        rounds=alone.rounds,
        drafts=alone.drafts,
    )


def _is_plain(timeline: Timeline) -> bool:
    """Whether the prompt is read once, and rounds follow it, on one target group."""
    starts_s = timeline.verifications_s
    if not starts_s or not timeline.commits or any(span.group for span in timeline.of(Role.TARGET)):
        return False
    return all(span.start_s < starts_s[0] for span in _prompt(timeline))


def _prompt(timeline: Timeline) -> list[Span]:
    """Chunks of the prompt that the target read."""
    return [span for span in timeline.phase(Phase.PREFILL) if span.model is Role.TARGET]


def _own(timeline: Timeline, phases: frozenset[Phase]) -> list[Span]:
    """Forwards on the target's devices."""
    return [span for span in timeline.phase(*phases) if span.role is Role.TARGET]


def _within(timelines: Sequence[Timeline], bounds: Sequence[_Array], phases: frozenset[Phase]) -> tuple[_Array, _Array]:
    """Seconds of forwards on the target's devices: in every round of all requests, and before each one's first."""
    within, before = [], []
    for timeline, bounds_s in zip(timelines, bounds, strict=True):
        spans = _own(timeline, phases)
        numbers = np.searchsorted(bounds_s, [span.start_s for span in spans], side="right")
        seconds = np.bincount(numbers, [span.end_s - span.start_s for span in spans], minlength=len(bounds_s) + 1)
        before.append(seconds[0])
        within.append(seconds[1 : len(bounds_s)])
    return np.concatenate(within), np.array(before)


def _mean_number(bounds: Sequence[_Array], starts_s: _Array, ends_s: _Array) -> _Array:
    """Requests that decode, the mean over each round."""
    begun_s = np.sort([b[0] for b in bounds])
    ended_s = np.sort([b[-1] for b in bounds])
    times_s = np.unique(np.concatenate([begun_s, ended_s]))
    number = np.searchsorted(begun_s, times_s, side="right") - np.searchsorted(ended_s, times_s, side="right")
    area_s = np.concatenate([[0.0], np.cumsum(number[:-1] * np.diff(times_s))])
    spent_s = np.interp(ends_s, times_s, area_s) - np.interp(starts_s, times_s, area_s)
    lasted_s = ends_s - starts_s
    mean: _Array = np.divide(spent_s, lasted_s, out=np.ones_like(spent_s), where=lasted_s > 0)
    return mean


def _rows_between(spans: Sequence[Span], starts_s: _Array, ends_s: _Array) -> _Array:
    """Rows of the spans that begin in each round. A request's own prompt is read before its first one."""
    ordered = sorted(spans, key=lambda span: span.start_s)
    begun_s = [span.start_s for span in ordered]
    rows = np.concatenate([[0.0], np.cumsum([span.rows for span in ordered])])
    found: _Array = rows[np.searchsorted(begun_s, ends_s)] - rows[np.searchsorted(begun_s, starts_s)]
    return found
