"""`swiftspec import` of acceptance: a record from a server's counters or a trace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.acceptance.records import AcceptanceRecords
from swiftspec.cli.app import main
from swiftspec.policies import DraftKind
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
    named = ["--target", "qwen3-32b", "--drafter", "EAGLE-3", "--set", "kind=head,thinking=true"]
    arguments = ["--from", str(metrics), *named, "--out", str(out), "--json", str(result)]
    assert main(["import", *arguments]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert (record.target, record.kind, record.thinking, record.bonus) == ("qwen3-32b", "head", True, False)
    assert record.values == pytest.approx((0.8, 0.6, 0.45))
    assert json.loads(result.read_text())["conditional"] == pytest.approx([0.8, 0.75, 0.75])
    assert "2.85" in capsys.readouterr().out  # tokens per round, 1 + 0.8 + 0.6 + 0.45


def test_a_trace_names_its_own_pair(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    assert main(["import", "--from", str(RECORDED / "trace.npz"), "--out", str(out)]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert (record.target, record.drafter, record.temperature) == ("demo/target", "demo/draft", 0.0)
    assert len(record.values) == 8


@pytest.mark.parametrize(
    ("settings", "kind", "rate"),
    [
        ("num_draft_tokens=3", DraftKind.SERIAL, 0.65),
        ("num_draft_tokens=3,kind=head,top_k=4,rows=8", DraftKind.HEAD, 0.52),  # runners-up rescue some rounds
        ("num_draft_tokens=3,kind=none", None, 0.65),
    ],
)
def test_a_mean_length_is_read_by_the_shape_that_it_was_counted_with(
    tmp_path: Path, settings: str, kind: DraftKind | None, rate: float
) -> None:
    counted, out = tmp_path / "sglang.txt", tmp_path / "a.json"
    counted.write_text("sglang:spec_accept_length 2.35\n")
    arguments = ["--from", str(counted), "--target", "t", "--drafter", "d", "--set", settings, "--out", str(out)]
    assert main(["import", *arguments]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert record.kind is kind
    assert record.conditional == pytest.approx((rate,) * 3, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Missing option '--from'."),
        (
            ["--from", "{sglang}"],
            "--set num_draft_tokens is missing; SGLang's metrics do not tell the length of chains",
        ),
        (["--from", "{sglang}", "--device", "h100"], "--device is h100; it is of op tables, and "),
        (
            ["--from", "aiconfigurator"],
            "--from is aiconfigurator, op tables; --target, --drafter and --set are of acceptance",
        ),
        (["--from", "nowhere.txt"], "nowhere.txt: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_flags_are_one_sentence(fails: Fails, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    named = ["--target", "t", "--drafter", "d", "--out", tmp_path / "a.json"]
    (tmp_path / "sglang.txt").write_text("sglang:spec_accept_length 2.5\n")
    given = [each.format(sglang=tmp_path / "sglang.txt") for each in arguments]
    assert sentence in fails("import", *given, *named)


def test_missing_names_and_other_lengths_are_one_sentence(fails: Fails, metrics: Path, tmp_path: Path) -> None:
    read = ["import", "--from", metrics, "--out", tmp_path / "a.json"]
    assert "--drafter is missing; the vllm-metrics do not tell it" in fails(*read, "--target", "t")
    sentence = fails(*read, "--target", "t", "--drafter", "d", "--set", "num_draft_tokens=4")
    assert sentence.endswith("--set num_draft_tokens is 4; vLLM counted 3 positions")
    assert not (tmp_path / "a.json").exists()
