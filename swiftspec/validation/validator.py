"""Report from a plan and the measured timelines of each policy. A pure function: no engine, no file, no clock."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.artifacts.metrics import Figures, measure
from swiftspec.artifacts.plan import Candidate, Plan, Prediction
from swiftspec.artifacts.report import Drift, PolicyReport, Report, relative_error
from swiftspec.files.document import Origin
from swiftspec.timing.timeline import Timeline

_Z95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measured timelines of one policy on the prompts.

    repeats: per repetition, of at least one, a timeline per prompt. outputs: by prompt, tokens of the first repetition.
    """

    policy: str
    repeats: tuple[tuple[Timeline, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


def make_report(
    plan: Plan,
    *,
    plan_sha256: str,
    measurements: Sequence[Measurement],
    origin: Origin,
    retimed: Mapping[str, Figures] | None = None,
    retraced: Mapping[str, Figures] | None = None,
    drift: Sequence[Drift] = (),
) -> Report:
    """Report of predicted and measured figures, in the plan's order.

    tokens_per_s is the median over repetitions; round_s and tokens_per_round are of all repetitions together. Outputs
    are compared with those of autoregressive decoding, or of the first policy if that was not measured. `retimed`: the
    prediction by policy with the latencies during the measurement; `retraced`: with these and with a trace of the
    measured texts; `drift`: these latencies relative to the profile. All measured policies are the plan's, and its
    choice is one of them.
    """
    by_policy = {measurement.policy: measurement for measurement in measurements}
    reference = plain_outputs(measurements)
    policies = tuple(
        _policy_report(
            candidate,
            by_policy[policy],
            reference,
            retimed=(retimed or {}).get(policy),
            retraced=(retraced or {}).get(policy),
        )
        for policy, candidate in plan.candidates.items()
        if policy in by_policy
    )
    speeds = {report.policy: report.measured.tokens_per_s for report in policies}
    return Report(
        origin=origin,
        plan_sha256=plan_sha256,
        chosen=plan.chosen.policy,
        num_prompts=len(reference),
        policies=policies,
        regret=max(speeds.values()) / speeds[plan.chosen.policy] - 1,
        drift=tuple(drift),
    )


def plain_outputs(measurements: Sequence[Measurement]) -> tuple[tuple[int, ...], ...]:
    """Reference output of every prompt: that of autoregressive decoding, otherwise of the first policy."""
    by_policy = {measurement.policy: measurement for measurement in measurements}
    return by_policy.get("autoregressive", measurements[0]).outputs


def _policy_report(
    candidate: Candidate,
    measurement: Measurement,
    reference: tuple[tuple[int, ...], ...],
    *,
    retimed: Figures | None,
    retraced: Figures | None,
) -> PolicyReport:
    repeats = tuple(measure(timelines).figures.tokens_per_s for timelines in measurement.repeats)
    metrics = measure([timeline for timelines in measurement.repeats for timeline in timelines])
    figures = metrics.figures.model_copy(update={"tokens_per_s": statistics.median(repeats)})
    predicted = candidate.prediction.metrics.figures
    return PolicyReport(
        policy=candidate.policy,
        candidate=candidate.describe(),
        predicted=predicted,
        measured=figures,
        error=relative_error(predicted, figures),
        error_margin=_error_margin(candidate.prediction, measurement.repeats),
        measured_metrics=metrics.model_copy(update={"figures": figures}),
        repeats=repeats,
        identical_output=measurement.outputs == reference,
        seconds_per_token=tuple(tuple(t.e2e_s / t.num_tokens for t in timelines) for timelines in measurement.repeats),
        predicted_acceptance=candidate.prediction.metrics.acceptance,
        retimed=retimed,
        retraced=retraced,
    )


def _error_margin(prediction: Prediction, repeats: Sequence[Sequence[Timeline]]) -> float | None:
    """95 % margin of the relative error over the choice of prompts; predicted and measured speed vary independently.

    The measured speed is a ratio of sums over prompts; its standard error follows from its residuals (Cochran, Sampling
    Techniques, 6.4).
    """
    num_prompts = len(repeats[0])
    if num_prompts < 2:
        return None
    of_prompt = [[repeat[index] for repeat in repeats] for index in range(num_prompts)]
    tokens = [sum(timeline.num_tokens for timeline in timelines) for timelines in of_prompt]
    seconds = [sum(timeline.e2e_s for timeline in timelines) for timelines in of_prompt]
    speed = sum(tokens) / sum(seconds)
    squares = sum((count - speed * time_s) ** 2 for count, time_s in zip(tokens, seconds, strict=True))
    measured = _Z95 * math.sqrt(squares * num_prompts / (num_prompts - 1)) / sum(tokens)
    width = prediction.tokens_per_s_high - prediction.tokens_per_s_low
    predicted = width / 2 / prediction.metrics.figures.tokens_per_s
    return math.hypot(measured, predicted)
