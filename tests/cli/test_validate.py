"""Printed lines of `swiftspec validate` about a report; tests/cli/test_pipeline.py tests that it makes one."""

import pytest

from swiftspec.artifacts.report import Drift, Report
from swiftspec.cli.validate import show_report
from swiftspec.devices.contention import Contention
from swiftspec.validation.validator import Measurement, make_report
from tests.cli.samples import ORIGIN, plan, serial_timeline


def report(*, plain_round_s: float) -> Report:
    """swiftspec as it comes, autoregressive with rounds of this length (predicted: 0.02 s)."""
    measurements = [
        Measurement(
            policy=policy,
            repeats=((serial_timeline(round_s=round_s), serial_timeline("b", round_s=round_s)),),
            outputs=((1,), (2,)),
        )
        for policy, round_s in (("swiftspec", 0.025), ("autoregressive", plain_round_s))
    ]
    return make_report(plan(), plan_sha256="0", measurements=measurements, origin=ORIGIN)


def test_machine_that_is_not_as_profiled_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(report(plain_round_s=0.03), plan())
    assert "took +50.0 % against the prediction: the machine is not as it was when profiled" in _printed(capsys)


def test_machine_that_is_as_profiled_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(report(plain_round_s=0.0205), plan())
    assert "profiled" not in _printed(capsys)


def test_errors_come_with_their_margin(capsys: pytest.CaptureFixture[str]) -> None:
    # The two prompts were equally fast, so that only the plan's own interval of 10 % is left.
    show_report(report(plain_round_s=0.02), plan())
    assert "% ± 10.0 %" in _printed(capsys)


@pytest.mark.parametrize(("factor", "word"), [(1.1, "easier"), (0.9, "harder"), (1.01, None)])
def test_other_text_is_named(factor: float, word: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    plain = report(plain_round_s=0.02)
    error = plain.policies[0].error.model_copy(update={"tokens_per_round": 1 / factor - 1})
    policies = tuple(policy.model_copy(update={"error": error}) for policy in plain.policies)
    show_report(plain.model_copy(update={"policies": policies}), plan())
    printed = _printed(capsys)
    assert (f"Tokens per round were {factor - 1:+.1%}".replace("%", " %") in printed) == (word is not None)
    assert word is None or f"prompts are {word} than those traced" in printed


def test_what_the_machine_changed_by_stands_beside_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    plain = report(plain_round_s=0.02)
    first, *others = plain.policies
    again = first.model_copy(update={"retimed": first.measured})
    drift = tuple(Drift(role="target", phase="verify", degree=1, peer_busy=False, factor=f) for f in (0.9, 1.25))
    show_report(plain.model_copy(update={"policies": (again, *others), "drift": drift}), plan())
    printed = _printed(capsys)
    assert "re-timed" in printed
    assert "forwards took -10.0 % to +25.0 % against the profile" in printed


def test_what_the_texts_changed_stands_beside_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    plain = report(plain_round_s=0.02)
    assert "re-traced" not in _shown(plain, capsys)
    for factor, shown in ((1.0, "+0.0 % to +0.0 %"), (1.03, "+3.0 % to +3.0 %")):
        policies = tuple(
            policy.model_copy(
                update={
                    "retraced": policy.measured.model_copy(
                        update={"tokens_per_round": factor * policy.measured.tokens_per_round}
                    )
                }
            )
            for policy in plain.policies
        )
        printed = _shown(plain.model_copy(update={"policies": policies}), capsys)
        assert "re-traced" in printed
        assert f"tokens per round are off by {shown}, tokens/s by 0.0 % in the median" in printed


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    """In one line: where lines are broken is not looked at."""
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("others_share", "factor", "said"),
    [
        (0.01, 1.1, "Regret of the choice, swiftspec 1+1"),
        (0.4, 1.1, "The machine was busy: other processes took 40.0 % of these cores' time"),
        (0.01, 1.6, "The machine was busy: forwards took +60.0 % against the profile"),
    ],
)
def test_no_regret_is_told_of_a_busy_machine(
    others_share: float, factor: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drift = (Drift(role="target", phase="verify", degree=1, peer_busy=False, factor=factor),)
    validation = report(plain_round_s=0.02).model_copy(update={"drift": drift})
    show_report(validation, plan(), Contention(others_share=others_share))
    printed = _printed(capsys)
    assert said in printed
    assert ("Regret of the choice, " in printed) == said.startswith("Regret")


def _shown(validation: Report, capsys: pytest.CaptureFixture[str]) -> str:
    show_report(validation, plan())
    return " ".join(_printed(capsys).split())
