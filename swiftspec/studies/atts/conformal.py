"""Conformal thresholds: when a score is high among calibration scores. Pure.

A score is a segment's perplexity under the target: higher is worse. If a new score and the calibration scores are
exchangeable, its rank among them is uniform, whatever their distribution. So the share of new scores above a threshold
is known beforehand, and each sample may decide for itself whether it is taken over.
"""

import math
from collections.abc import Sequence

from swiftspec.studies.atts.document import Rule

_ROUNDING = 1e-9  # 0.3 x 10 is 3


def perplexity(log_probs: Sequence[float]) -> float:
    """The score of a segment: exp of the mean negative log-likelihood of its tokens. ValueError without tokens."""
    if not log_probs:
        raise ValueError("log_probs are empty; expected those of at least one token")
    return math.exp(-sum(log_probs) / len(log_probs))


def p_value(score: float, calibration: Sequence[float]) -> float:
    """Share of the calibration scores, and this one, that are at least as high as this one."""
    return (1 + sum(each >= score for each in calibration)) / (len(calibration) + 1)


def threshold(calibration: Sequence[float], budget: float, rule: Rule = Rule.CONFORMAL) -> float:
    """The score above which a segment is taken over; minus or plus infinity if all or none are.

    By the rule `CONFORMAL` these are the scores whose p-value is at most the budget.

    Parameters
    ----------
    calibration : sequence of float
        At least one score.
    budget : float
        Share of the segments to take over, 0 to 1.

    Raises
    ------
    ValueError
        If there are no scores, or the budget is no share.
    """
    if not calibration:
        raise ValueError("calibration is empty; expected at least one score")
    rank = _rank(len(calibration), budget, rule)
    if rank == 0:
        return -math.inf
    return sorted(calibration)[rank - 1] if rank <= len(calibration) else math.inf


def expected_share(num_scores: int, budget: float, rule: Rule = Rule.CONFORMAL) -> float:
    """Share of new scores above the threshold of `num_scores` calibration scores, all exchangeable and different."""
    return (num_scores + 1 - _rank(num_scores, budget, rule)) / (num_scores + 1)


def _rank(num_scores: int, budget: float, rule: Rule) -> int:
    """Number of calibration scores that a score must exceed to be taken over."""
    if not 0 <= budget <= 1:
        raise ValueError(f"budget is {budget}; expected a share from 0 to 1")
    num_ranks = num_scores + (rule is Rule.CONFORMAL)
    return num_ranks - math.floor(budget * num_ranks + _ROUNDING)
