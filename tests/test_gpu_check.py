"""The GPU check: what it concludes from figures, and that its stages run where there is no GPU."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swiftspec.profiler.gpu_check import conclude, summary
from tests.engine.conftest import two_cores

ROOT = Path(__file__).resolve().parents[1]


def record(kind: str, shape: str = "a shape", **figures: float) -> dict[str, Any]:
    return {"kind": kind, "shape": shape, "median_s": 1e-5, "of_copy": 0.8, "rival_s": 1e-5, "error": 1e-3} | figures


def report(**errors: float) -> dict[str, Any]:
    return {"policies": [{"policy": name, "error": {"round_s": {"median": e, "p95": 9}}} for name, e in errors.items()]}


GOOD = [
    record("product"),
    record("gate_up"),
    record("attention", of_copy=0.1, rival_s=2e-5),
    {"kind": "forward", "shape": "bfloat16, 64 layers", "median_s": 0.017, "of_copy": 0.76},
]


def verdicts(records: list[dict[str, Any]], validation: dict[str, Any] | None) -> list[bool | None]:
    return [criterion["holds"] for criterion in conclude(records, validation)]


def test_everything_holds_where_everything_is_good() -> None:
    assert verdicts(GOOD, report(serial=-0.04, chain=0.01)) == [True] * 6


@pytest.mark.parametrize(
    ("change", "index", "where"),
    [
        (record("product", "8B qkv", error=0.02), 0, "product 8B qkv"),
        (record("product", "8B qkv", error=math.nan), 0, "product 8B qkv"),
        (record("gate_up", "70B", of_copy=0.74), 1, "gate_up 70B"),
        (record("product", "8B down", rival_s=0.97e-5), 2, "product 8B down"),
        (record("attention", "context 500"), 3, "attention context 500"),
        (record("forward", "bfloat16, 64 layers", of_copy=0.7), 4, "forward bfloat16, 64 layers"),
    ],
)
def test_the_worst_measurement_decides_and_is_named(change: dict[str, Any], index: int, where: str) -> None:
    criteria = conclude([*GOOD, change], report(serial=0.0))
    assert [criterion["holds"] for criterion in criteria] == [i != index for i in range(6)]
    assert criteria[index]["where"] == where


def test_a_forward_in_another_format_is_no_criterion() -> None:
    slow = record("forward", "fp8, 64 layers", of_copy=0.3)
    assert verdicts([*GOOD, slow], None)[4] is True


def test_a_round_that_is_predicted_too_short_counts_as_much_as_one_too_long() -> None:
    (*_, rounds) = conclude(GOOD, report(serial=0.02, tree=-0.06))
    assert (rounds["holds"], rounds["found"], rounds["where"]) == (False, 0.06, "round of tree")


def test_what_was_not_measured_is_unknown() -> None:
    assert verdicts([], None) == [None] * 6


def run(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OUT": str(folder), "PYTHON": sys.executable}
    command = [str(ROOT / "scripts/gpu_check.sh"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@two_cores
def test_a_dry_run_leaves_one_document_and_a_summary(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--quick", "--only", "kernels,forward,sharing,plan", folder=tmp_path)
    assert done.returncode == 1  # there is no profile to plan from, which stops nothing
    document = json.loads((tmp_path / "gpu-check.json").read_text())
    assert (document["schema"], document["version"], document["dry_run"]) == ("swiftspec.gpu-check", 1, True)
    codes = {stage["name"]: stage["exit_code"] for stage in document["stages"]}
    assert codes == {"kernels": 0, "forward": 0, "plan": 2, "sharing": 0}
    assert {found["kind"] for found in document["records"]} == {"copy", "product", "gate_up", "attention", "forward"}
    exact = document["criteria"][0]
    assert exact["holds"] is True
    assert 1e-4 < exact["found"] < 1e-2
    assert document["criteria"][-1]["holds"] is None
    ways = [found["way"] for found in document["sharing"]]
    assert ways == ["target alone", "in turn", "two processes", "two streams"]
    assert all(found["tokens_per_s"] > 0 and not found["differing_outputs"] for found in document["sharing"])
    assert document["versions"].keys() == {"python", "swiftspec-llm", "torch", "triton", "numpy"}
    text = (tmp_path / "summary.txt").read_text()
    assert text == summary(document)
    assert "failed (2)" in text
    assert "A dry run" in text
    assert "profile.json" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("options", [["--devise", "cpu"], ["--device", "tpu"]])
def test_an_option_that_is_not_known_is_named(options: list[str], tmp_path: Path) -> None:
    done = run(*options, folder=tmp_path)
    assert done.returncode == 2
    assert options[0] in done.stderr
    assert list(tmp_path.iterdir()) == []
