"""Report of a run on a GPU: what the criteria conclude from its records, also where the run was cut short."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_report import conclude, gather, main, summary


def record(kind: str, shape: str = "a shape", **figures: Any) -> dict[str, Any]:
    return {"kind": kind, "shape": shape, "median_s": 1e-5, "of_copy": 0.8, "rival_s": 1e-5, "error": 1e-3} | figures


def report(**errors: float) -> dict[str, Any]:
    return {"policies": [{"policy": name, "error": {"round_s": {"median": e, "p95": 9}}} for name, e in errors.items()]}


ENGINES: dict[str, Any] = {"dtype": "bfloat16", "products": "tuned", "pdl": True}
GOOD = [
    record("product"),
    record("gate_up"),
    record("attention", of_copy=0.1, rival_s=2e-5),
    record("forward", "32B", of_copy=0.76, **ENGINES),
    {"kind": "greedy", "policy": "serial_chain", "dtype": "float32", "differing_outputs": 0},
]


def verdicts(records: list[dict[str, Any]], validation: dict[str, Any] | None) -> list[bool | None]:
    return [criterion.held for criterion in conclude(records, validation)]


def test_everything_holds_where_everything_is_good() -> None:
    assert verdicts(GOOD, report(serial=-0.04, chain=0.01)) == [True] * 7


@pytest.mark.parametrize(
    ("change", "index", "where"),
    [
        (record("product", "8B qkv", error=0.02), 0, "product 8B qkv"),
        (record("product", "8B qkv", error=math.nan), 0, "product 8B qkv"),
        (record("gate_up", "70B", of_copy=0.74), 2, "gate_up 70B"),
        (record("product", "8B down", rival_s=0.97e-5), 3, "product 8B down"),
        (record("attention", "context 500"), 4, "attention context 500"),
        (record("forward", "8B", of_copy=0.7, **ENGINES), 5, "forward 8B"),
        (
            {"kind": "greedy", "policy": "easyspec", "dtype": "float32", "differing_outputs": 1},
            1,
            "easyspec in float32",
        ),
    ],
)
def test_the_worst_measurement_decides_and_is_named(change: dict[str, Any], index: int, where: str) -> None:
    criteria = conclude([*GOOD, change], report(serial=0.0))
    assert [criterion.held for criterion in criteria] == [i != index for i in range(7)]
    assert criteria[index].where == where


@pytest.mark.parametrize("change", [{"dtype": "fp8"}, {"products": "torch"}, {"pdl": False}], ids=str)
def test_a_forward_in_another_way_than_the_engines_is_no_criterion(change: dict[str, Any]) -> None:
    slow = record("forward", "32B", of_copy=0.3, **ENGINES) | change
    assert verdicts([*GOOD, slow], None)[5] is True


def test_a_round_that_is_predicted_too_short_counts_as_much_as_one_too_long() -> None:
    (*_, rounds) = conclude(GOOD, report(serial=0.02, tree=-0.06))
    assert (rounds.held, rounds.where) == (False, "round of tree")
    assert rounds.found == pytest.approx(6)


def test_what_was_not_measured_is_unknown() -> None:
    assert verdicts([], None) == [None] * 7


LOG = """\
[gw3] [  1%] PASSED tests/kernels/test_rms_norm.py::test_matches_reference[1-64]
tests/kernels/test_rope.py::test_rotates PASSED                          [  2%]
[gw1] [  3%] FAILED tests/kernels/test_gate_up.py::test_matches_reference[8-bfloat16]
tests/kernels/test_round.py::test_ranks SKIPPED (no symmetric memory)   [  4%]
FAILED tests/kernels/test_gate_up.py::test_matches_reference[8-bfloat16] - AssertionError
"""


@pytest.fixture
def cut_short(tmp_path: Path) -> Path:
    """A folder in which the second step was ended in the middle of a record, and tests in the middle of a test."""
    lines = [{"kind": "environment", "device": "NVIDIA H200", "commit": "abc"}, record("product", "8B qkv")]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "product", "sha')
    (tmp_path / "steps.tsv").write_text("packages\t60\t9\t0\t0\ntests\t120\t120\t124\t5\nsanitizer\t50\t0\t77\t0\n")
    (tmp_path / "tests.log").write_text(LOG + "tests/kernels/test_skinny_gemm.py::test_no")
    return tmp_path


def test_a_run_that_was_cut_short_keeps_what_is_known(cut_short: Path) -> None:
    document = gather(cut_short, run=1, dry_run=False)
    assert [found["shape"] for found in document["records"]] == ["8B qkv"]
    assert document["environment"]["device"] == "NVIDIA H200"
    _, tests, _ = document["steps"]
    assert tests["tests"] == {"passed": 2, "failed": 1, "skipped": 1}
    assert tests["failures"] == ["tests/kernels/test_gate_up.py::test_matches_reference[8-bfloat16]"]
    assert document["validation"] is None


def test_a_summary_names_steps_tests_and_figures(cut_short: Path) -> None:
    assert main([str(cut_short), "--run", "1"]) == 0
    text = (cut_short / "summary.txt").read_text()
    assert text == summary(json.loads((cut_short / "run.json").read_text()))
    details = "2 passed, 1 failed, 1 skipped, 5 new in Triton's cache"
    for part in ("Run 1 on NVIDIA H200", "ran out of time", details, "8B qkv"):
        assert part in text
    assert re.search(r"^sanitizer .* skipped$", text, re.MULTILINE)
    assert "A dry run" not in text


def test_a_run_of_which_nothing_is_known_has_a_summary(tmp_path: Path) -> None:
    (tmp_path / "steps.tsv").write_text("packages\t60\t1\t1\t0\n")
    assert main([str(tmp_path), "--run", "3", "--dry-run"]) == 0
    assert "failed (1)" in (tmp_path / "summary.txt").read_text()
