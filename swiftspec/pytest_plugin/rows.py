"""Rows of measurements for pytest-benchmark, and the table at the end of pytest's output."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from swiftspec.artifacts.plan import Plan
    from swiftspec.artifacts.report import PolicyReport, Report

__all__ = ["Clock", "extra_info", "table"]


class Clock:
    """A clock that a benchmark's rounds set themselves, so that each round lasts exactly the measured time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def validation_clock(self) -> float:
        """Current time in seconds. pytest-benchmark stores this function's name as the row's timer."""
        return self._now_s

    def record(self, benchmark: "BenchmarkFixture", durations_s: Sequence[float]) -> None:
        """Record one round for every duration."""
        left_s = iter(durations_s)

        def start_at_zero() -> None:
            self._now_s = 0.0

        def last_as_measured() -> None:
            self._now_s = next(left_s, 0.0)  # --benchmark-cprofile calls more often than there are rounds

        benchmark.pedantic(last_as_measured, setup=start_at_zero, rounds=len(durations_s))


def extra_info(policy: "PolicyReport", report: "Report", plan: "Plan") -> dict[str, Any]:
    """Contents of a stored row besides its times. Errors are predicted / measured - 1 of tokens/s."""
    retraced = policy.retraced_error
    provenance = plan.candidates[policy.policy].prediction.provenance
    return {
        "policy": policy.policy,
        "candidate": policy.candidate,
        "chosen": policy.policy == report.chosen,
        "predicted_tokens_per_s": policy.predicted.tokens_per_s,
        "measured_tokens_per_s": policy.measured.tokens_per_s,
        "error": policy.error.tokens_per_s,
        "error_margin": policy.error_margin,
        "retimed_error": policy.retimed_error,
        "retraced_error": None if retraced is None else retraced.tokens_per_s,
        "predicted_tokens_per_round": policy.predicted.tokens_per_round,
        "measured_tokens_per_round": policy.measured.tokens_per_round,
        "identical_output": policy.identical_output,
        "regret": report.regret,
        "rank_correlation": report.rank_correlation,
        "provenance": {str(name): share for name, share in provenance.items()},
        "target": str(plan.target),
        "draft": str(plan.draft),
        "num_prompts": report.num_prompts,
        "repeats": len(policy.repeats),
        "plan_sha256": report.plan_sha256,
        "device": report.origin.device,
        "versions": report.origin.versions,
    }


def table(report: "Report") -> Iterator[str]:
    """Lines: predicted and measured tokens/s of every policy, and the regret."""
    from swiftspec.reports.formatting import percent, signed_percent, speed

    layout = "{:<17} {:>10} {:>10} {:>10} {:>9} {:>10}"
    yield layout.format("policy", "predicted", "measured", "error", "±", "re-timed")
    for policy in report.policies:
        margin, retimed = policy.error_margin, policy.retimed_error
        yield layout.format(
            policy.policy,
            speed(policy.predicted.tokens_per_s),
            speed(policy.measured.tokens_per_s),
            signed_percent(policy.error.tokens_per_s),
            "" if margin is None else percent(margin),
            "" if retimed is None else signed_percent(retimed),
        )
    yield f"Regret of the choice, {report.chosen}: {percent(report.regret)}"
