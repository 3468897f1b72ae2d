"""Wait of verifications for those of other requests, where the draft has devices of its own."""

from swiftspec.artifacts.plan import Candidate
from swiftspec.policies import Layout

__all__ = ["usual_gather_s"]


def usual_gather_s(candidate: Candidate) -> float:
    """As long as two draft forwards, as predicted, and an answer without one; 0 where the models share devices.

    After a miss a draft needs one forward, and another request's may be under way.
    """
    metrics = candidate.prediction.metrics
    if candidate.build().layout is not Layout.DISAGGREGATED or not metrics.drafts_per_round:
        return 0.0
    forward_s = metrics.draft_busy * metrics.mean_round_s / metrics.drafts_per_round
    return 2 * forward_s + (metrics.tail_s.median if metrics.tail_s else 0.0)
