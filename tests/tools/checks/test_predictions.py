"""Errors of a pair's predictions, and the criteria on them."""

from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.report import Report
from tools.checks.predictions import Errors, criteria, divided

RECORDED = Path(__file__).parents[3] / "swiftspec/profiles/demo-sapphire-rapids-2-cores"


def errors(policy: str, *, speed: float = 0.0, length: float = 0.0) -> Errors:
    """A policy whose re-traced prediction is off by so much."""
    return Errors(
        policy=policy,
        tokens_per_s=100.0,
        tokens_per_round=4.0,
        drafts_per_round=5.0,
        planned_drafts_per_round=6.0,
        speed={"retraced": speed},
        length={"retraced": length},
    )


@pytest.mark.parametrize(
    ("found", "held"),
    [
        ({"swiftspec": (0.03, 0.05), "serial_tree": (-0.02, 0.0)}, [True, True, True]),
        ({"swiftspec": (-0.09, 0.0), "serial_tree": (0.0, 0.0)}, [False, False, True]),
        ({"swiftspec": (0.05, 0.0), "serial_tree": (0.05, 0.0)}, [True, False, True]),
        ({"swiftspec": (0.0, 0.04), "serial_tree": (0.0, -0.03)}, [True, True, False]),
        ({"swiftspec": (0.0, -0.05), "serial_tree": (0.0, -0.04), "autoregressive": (0.0, 0.0)}, [True, True, True]),
    ],
)
def test_criteria_are_of_every_policy_the_median_and_the_lengths(
    found: dict[str, tuple[float, float]], held: list[bool]
) -> None:
    policies = [errors(name, speed=speed, length=length) for name, (speed, length) in found.items()]
    assert [criterion.held for criterion in criteria("bundled", policies, ["retraced"])] == held


def test_the_worst_policy_is_named() -> None:
    policies = [errors("swiftspec", speed=0.1), errors("serial_tree")]
    worst = next(iter(criteria("second", policies, ["retraced"])))
    assert str(worst) == "missed: second: retraced error of tokens/s: 10 % (swiftspec), at most 8 %"


def test_a_prediction_that_was_not_made_is_unknown() -> None:
    verdicts = [criterion.held for criterion in criteria("bundled", [errors("swiftspec")], ["retimed"])]
    assert verdicts[:2] == [None, None]


def files(folder: Path, num_traced: int, num_measured: int) -> tuple[Path, Path]:
    traced, measured = folder / "traced", folder / "measured"
    traced.write_text("".join(f"t{number}\n" for number in range(num_traced)))
    measured.write_text("".join(f"m{number}\n" for number in range(num_measured)))
    return traced, measured


def test_mixed_prompts_are_all_there_once_and_from_both_files(tmp_path: Path) -> None:
    both = files(tmp_path, 20, 10)
    texts = divided(both, tmp_path / "mixed", num_measured=12, fold=None, repeats=1)
    traced, measured = (file.read_text().split() for file in (texts.traced, texts.measured))
    assert (len(traced), len(measured), texts.num_measured) == (18, 12, 12)
    assert sorted(traced + measured) == sorted(word for file in both for word in file.read_text().split())
    assert {line[0] for line in measured} == {"t", "m"}


def test_folds_measure_every_prompt_once_and_trace_the_others(tmp_path: Path) -> None:
    both = files(tmp_path, 20, 11)
    every = sorted(word for file in both for word in file.read_text().split())
    parts = []
    for fold in range(2):
        texts = divided(both, tmp_path / str(fold), num_measured=12, fold=(fold, 2), repeats=1)
        traced, measured = (file.read_text().split() for file in (texts.traced, texts.measured))
        assert sorted(traced + measured) == every
        assert texts.num_measured == len(measured)
        parts += measured
    assert sorted(parts) == every


def test_errors_are_those_of_the_report_and_cancel_over_folds() -> None:
    """A part that is easier than the others is predicted too slow, and they too fast from it."""
    report, plan = Report.load(RECORDED / "report.json"), Plan.load(RECORDED / "plan.json")
    own = Errors.of("swiftspec", [(report, plan)])
    (policy,) = (each for each in report.policies if each.policy == "swiftspec")
    assert policy.retraced_error is not None
    assert own.speed == pytest.approx(
        {
            "planned": policy.error.tokens_per_s,
            "retimed": policy.retimed_error,
            "retraced": policy.retraced_error.tokens_per_s,
        }
    )
    opposite = policy.predicted.model_copy(
        update={"tokens_per_s": policy.measured.tokens_per_s * (1 - policy.error.tokens_per_s)}
    )
    other = report.model_copy(update={"policies": (policy.model_copy(update={"predicted": opposite}),)})
    both = Errors.of("swiftspec", [(report, plan), (other, plan)])
    assert both.speed["planned"] == pytest.approx(0, abs=1e-12)
    assert both.speed["retimed"] == pytest.approx(own.speed["retimed"])
