"""`swiftspec rates`: a record from a server's counters or a trace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.acceptance.records import AcceptanceRecords
from swiftspec.cli.app import main
from tests.acceptance.test_importing import vllm_metrics
from tools.pictures import RECORDED

Fails = Callable[..., str]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.txt"
    path.write_text(vllm_metrics((1000, 3000, (800, 600, 450))))
    return path


def test_counters_become_a_record(metrics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, result = tmp_path / "a.json", tmp_path / "r.json"
    named = ["--target", "qwen3-32b", "--drafter", "EAGLE-3", "--kind", "head", "--thinking"]
    arguments = ["--vllm-metrics", str(metrics), *named, "--out", str(out), "--json", str(result)]
    assert main(["rates", *arguments]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert (record.target, record.kind, record.thinking, record.bonus) == ("qwen3-32b", "head", True, False)
    assert record.values == pytest.approx((0.8, 0.6, 0.45))
    assert json.loads(result.read_text())["conditional"] == pytest.approx([0.8, 0.75, 0.75])
    assert "2.85" in capsys.readouterr().out  # tokens per round, 1 + 0.8 + 0.6 + 0.45


def test_a_trace_names_its_own_pair(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    assert main(["rates", "--trace", str(RECORDED / "trace.npz"), "--out", str(out)]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert (record.target, record.drafter, record.temperature) == ("demo/target", "demo/draft", 0.0)
    assert len(record.values) == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "expected one of --vllm-metrics, --sglang-metrics and --trace; none is given"),
        (["--vllm-metrics", "m", "--trace", "t"], "; --vllm-metrics and --trace is given"),
        (["--sglang-metrics", "m"], "--num-draft-tokens is missing; SGLang's metrics do not tell the length of chains"),
    ],
)
def test_wrong_flags_are_one_sentence(fails: Fails, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    named = ["--target", "t", "--drafter", "d", "--out", tmp_path / "a.json"]
    assert sentence in fails("rates", *arguments, *named)


def test_missing_names_and_other_lengths_are_one_sentence(fails: Fails, metrics: Path, tmp_path: Path) -> None:
    read = ["rates", "--vllm-metrics", metrics, "--out", tmp_path / "a.json"]
    assert "--drafter is missing; --vllm-metrics does not tell it" in fails(*read, "--target", "t")
    sentence = fails(*read, "--target", "t", "--drafter", "d", "--num-draft-tokens", 4)
    assert sentence.endswith("--num-draft-tokens is 4; vLLM counted 3 positions")
    assert not (tmp_path / "a.json").exists()
