from pathlib import Path
from typing import Any

import pytest

from swiftspec.cli import console
from tools.check_predictions import criteria, folded, mean_of, mixed, show


def policy(name: str, *, speed_error: float = 0.0, length_error: float = 0.0) -> dict[str, Any]:
    """A policy's part of a report whose re-traced prediction is off by so much."""
    measured = {"tokens_per_s": 100.0, "tokens_per_round": 4.0}
    again = {"tokens_per_s": 100.0 * (1 + speed_error), "tokens_per_round": 4.0 * (1 + length_error)}
    figures = {"measured": measured, "predicted": again, "retimed": None, "retraced": again}
    return {"policy": name, "measured_metrics": {"drafts_per_round": 5.0}} | figures


@pytest.mark.parametrize(
    ("errors", "held"),
    [
        ({"swiftspec": (0.03, 0.05), "serial_tree": (-0.02, 0.0)}, [True, True, True]),
        ({"swiftspec": (-0.09, 0.0), "serial_tree": (0.0, 0.0)}, [False, False, True]),
        ({"swiftspec": (0.05, 0.0), "serial_tree": (0.05, 0.0)}, [True, False, True]),
        ({"swiftspec": (0.0, 0.04), "serial_tree": (0.0, -0.03)}, [True, True, False]),
        ({"swiftspec": (0.0, -0.05), "serial_tree": (0.0, -0.04), "autoregressive": (0.0, 0.0)}, [True, True, True]),
    ],
)
def test_criteria_are_of_every_policy_the_median_and_the_lengths(
    errors: dict[str, tuple[float, float]], held: list[bool]
) -> None:
    policies = [policy(name, speed_error=speed, length_error=length) for name, (speed, length) in errors.items()]
    assert [verdict for verdict, _ in criteria(policies, ["retraced"])] == held


def test_the_table_holds_every_policy_and_what_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    policies = [{**policy("swiftspec", speed_error=0.1), "repeats": [1.0, 1.0]}, policy("serial_tree")]
    candidates = [
        {"policy": name, "prediction": {"metrics": {"drafts_per_round": 6.0}}} for name in ("swiftspec", "serial_tree")
    ]
    plan = {"chosen": candidates[0], "alternatives": candidates[1:]}
    console.begin()  # a test before this one may have sent results to stderr
    assert not show("second", [({"num_prompts": 12, "policies": policies}, plan)], bases=("retraced",))
    printed = capsys.readouterr().out
    assert "swiftspec" in printed
    assert "serial_tree" in printed
    assert "missed: retraced error of tokens/s at most 10.0 % (swiftspec)" in printed


def test_mixed_prompts_are_all_there_once_and_from_both_files(tmp_path: Path) -> None:
    traced, measured = tmp_path / "trace.jsonl", tmp_path / "validate.jsonl"
    traced.write_text("".join(f"t{number}\n" for number in range(20)))
    measured.write_text("".join(f"m{number}\n" for number in range(10)))
    folder = tmp_path / "mixed"
    folder.mkdir()
    files = mixed(traced, measured, folder, num_measured=12)
    again = [file.read_text().splitlines() for file in files]
    assert [len(lines) for lines in again] == [18, 12]
    assert sorted(again[0] + again[1]) == sorted((traced.read_text() + measured.read_text()).split())
    assert {line[0] for line in again[1]} == {"t", "m"}


def test_folds_measure_every_prompt_once_and_trace_the_others(tmp_path: Path) -> None:
    traced, measured = tmp_path / "trace.jsonl", tmp_path / "validate.jsonl"
    traced.write_text("".join(f"t{number}\n" for number in range(20)))
    measured.write_text("".join(f"m{number}\n" for number in range(11)))
    every = sorted((traced.read_text() + measured.read_text()).split())
    parts = []
    for fold in range(2):
        folder = tmp_path / str(fold)
        folder.mkdir()
        *files, number = folded(traced, measured, folder, fold=fold, num_folds=2)
        others, part = (file.read_text().split() for file in files)
        assert sorted(others + part) == every
        assert number == len(part)
        parts += part
    assert sorted(parts) == every


def test_errors_of_folds_cancel() -> None:
    """A part that is easier than the others is predicted too slow, and they too fast from it."""
    folds = [policy("swiftspec", speed_error=sign * 0.05, length_error=sign * 0.02) for sign in (1, -1)]
    for fold in folds:
        fold |= {"retimed": fold["retraced"], "planned_drafts_per_round": 5.0}
    both = mean_of(folds)
    assert both["retraced"] == pytest.approx(both["measured"])
    folds[1] = folds[0]
    assert mean_of(folds)["retraced"]["tokens_per_s"] == pytest.approx(105.0)
