import pytest

from swiftspec.artifacts.report import Drift
from swiftspec.timing.timeline import Timeline
from swiftspec.validation.validator import Measurement, make_report, plain_outputs
from tests.cli.samples import ORIGIN, parallel_timeline, plan, serial_timeline

OUTPUT = ((1, 2, 3),)


def measurement(policy: str, *timelines: Timeline, outputs: tuple[tuple[int, ...], ...] = OUTPUT) -> Measurement:
    """A repetition of one prompt per timeline."""
    return Measurement(policy=policy, repeats=tuple((timeline,) for timeline in timelines), outputs=outputs)


def test_speed_is_the_median_over_repetitions_and_rounds_those_of_all() -> None:
    # 8 tokens in 5 rounds' time (prefill included): 16, 8 and 4 tokens/s.
    timelines = [serial_timeline(round_s=round_s) for round_s in (0.1, 0.4, 0.2)]
    report = make_report(
        plan(),
        plan_sha256="0",
        measurements=[measurement("swiftspec", *timelines)],
        origin=ORIGIN,
    )
    (policy,) = report.policies
    assert policy.repeats == pytest.approx((16.0, 4.0, 8.0))
    assert [list(repeat) for repeat in policy.seconds_per_token] == [
        pytest.approx([1 / speed]) for speed in policy.repeats
    ]
    assert policy.measured.tokens_per_s == pytest.approx(8.0)
    assert policy.measured_metrics.figures == policy.measured
    assert policy.measured.tokens_per_round == 2.0
    assert policy.measured_metrics.rounds == 12


def test_error_is_signed_and_relative_to_the_measured() -> None:
    report = make_report(
        plan(), plan_sha256="0", measurements=[measurement("swiftspec", parallel_timeline())], origin=ORIGIN
    )
    (policy,) = report.policies
    measured = policy.measured
    assert policy.predicted.tokens_per_s == 120.0
    assert policy.error.tokens_per_s == pytest.approx(120.0 / measured.tokens_per_s - 1)
    assert policy.error.tokens_per_round == pytest.approx(2.5 / 3.0 - 1)
    assert policy.error.round_s.median == pytest.approx(0.02 / measured.round_s.median - 1)
    assert policy.error.round_s.p95 == pytest.approx(0.03 / measured.round_s.p95 - 1)


def test_margin_of_the_error_is_that_of_the_prompts() -> None:
    # Two prompts of 8 tokens in 0.5 s and 1.5 s: 8 tokens/s, residuals of 4 tokens each, so a standard error of
    # sqrt(2 * (4**2 + 4**2)) / 16 = 1/2; the plan's interval is 10 % to either side.
    fast, slow = serial_timeline(round_s=0.1), serial_timeline("b", round_s=0.3)
    measured = Measurement(policy="swiftspec", repeats=((fast, slow), (fast, slow)), outputs=(*OUTPUT, *OUTPUT))
    (policy,) = make_report(plan(), plan_sha256="0", measurements=[measured], origin=ORIGIN).policies
    assert policy.error_margin == pytest.approx(((1.95996 / 2) ** 2 + 0.1**2) ** 0.5, rel=1e-4)


def test_single_prompt_says_nothing_of_others() -> None:
    measured = measurement("swiftspec", serial_timeline(), serial_timeline())
    (policy,) = make_report(plan(), plan_sha256="0", measurements=[measured], origin=ORIGIN).policies
    assert policy.error_margin is None


def test_regret_is_how_much_faster_the_best_was_than_the_chosen() -> None:
    measurements = [
        measurement("autoregressive", serial_timeline(round_s=0.4)),
        measurement("swiftspec", serial_timeline(round_s=0.2)),
        measurement("serial_chain", serial_timeline(round_s=0.1)),
    ]
    report = make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)
    assert report.chosen == "swiftspec"
    assert report.regret == pytest.approx(1.0)
    assert [policy.policy for policy in report.policies] == ["swiftspec", "serial_chain", "autoregressive"]


def test_regret_is_zero_when_the_chosen_was_the_best() -> None:
    measurements = [
        measurement("serial_chain", serial_timeline(round_s=0.4)),
        measurement("swiftspec", serial_timeline(round_s=0.2)),
    ]
    assert make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN).regret == 0.0


def test_output_is_compared_with_autoregressive_decoding() -> None:
    measurements = [
        measurement("swiftspec", serial_timeline(), outputs=((1, 2, 4),)),
        measurement("serial_chain", serial_timeline()),
        measurement("autoregressive", serial_timeline()),
    ]
    report = make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)
    assert {policy.policy: policy.identical_output for policy in report.policies} == {
        "swiftspec": False,
        "serial_chain": True,
        "autoregressive": True,
    }


def test_retimed_predictions_leave_the_error_of_the_model() -> None:
    timeline = parallel_timeline()
    (policy,) = make_report(
        plan(), plan_sha256="0", measurements=[measurement("swiftspec", timeline)], origin=ORIGIN
    ).policies
    assert policy.retimed_error is None
    slower = policy.predicted.model_copy(update={"tokens_per_s": 1.1 * policy.measured.tokens_per_s})
    drift = Drift(role="target", phase="verify", degree=1, peer_busy=True, factor=1.25)
    report = make_report(
        plan(),
        plan_sha256="0",
        measurements=[measurement("swiftspec", timeline)],
        origin=ORIGIN,
        retimed={"swiftspec": slower},
        drift=[drift],
    )
    assert report.policies[0].retimed_error == pytest.approx(0.1)
    assert report.policies[0].error == policy.error
    assert report.drift == (drift,)


def test_retraced_predictions_leave_the_error_of_the_simulator() -> None:
    measurements = [measurement("swiftspec", parallel_timeline())]
    plain = make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)
    assert plain.policies[0].retraced_error is None
    assert plain.retraced_agreement is None
    measured = plain.policies[0].measured
    again = measured.model_copy(
        update={"tokens_per_s": 0.95 * measured.tokens_per_s, "tokens_per_round": 1.02 * measured.tokens_per_round}
    )
    report = make_report(
        plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN, retraced={"swiftspec": again}
    )
    error = report.policies[0].retraced_error
    assert error is not None
    assert (error.tokens_per_s, error.tokens_per_round) == pytest.approx((-0.05, 0.02))
    assert report.retraced_agreement == pytest.approx((1.0, 0.05))
    assert report.policies[0].error == plain.policies[0].error


def test_outputs_are_those_of_autoregressive_decoding_or_of_the_first_policy() -> None:
    chain = measurement("serial_chain", serial_timeline(), outputs=((7,),))
    plain = measurement("autoregressive", serial_timeline(), outputs=((8,),))
    assert plain_outputs([chain, plain]) == ((8,),)
    assert plain_outputs([chain]) == ((7,),)
