"""`swiftspec import` of acceptance: a record from a server's counters or a trace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.records import AcceptanceRecords
from swiftspec.cli.app import main
from swiftspec.cli.settings import CONDITIONS
from swiftspec.models.heads import Drafter
from swiftspec.policies import DraftKind
from tests.acceptance.test_importing import vllm_metrics
from tests.acceptance.test_server_logs import VLLM
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
            "sglang.txt does not tell the length of chains",
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
    assert "--drafter is missing; the file of --from does not tell it" in fails(*read, "--target", "t")
    sentence = fails(*read, "--target", "t", "--drafter", "d", "--set", "num_draft_tokens=4")
    assert sentence.endswith(f"--set num_draft_tokens is 4; {metrics} counts 3 positions")
    sentence = fails(*read, "--target", "t", "--drafter", "d", "--set", "top_k=4")
    assert sentence.endswith(f"--set top_k is 4; it is of trees, and {metrics} has chains")
    assert not (tmp_path / "a.json").exists()


def test_metrics_name_their_target_and_a_kind_its_drafter(metrics: Path, tmp_path: Path) -> None:
    metrics.write_text(vllm_metrics((1000, 3000, (800, 600, 450))).replace('"m"', '"Qwen/Qwen3-32B"'))
    out = tmp_path / "a.json"
    assert main(["import", "--from", str(metrics), "--set", "kind=eagle3", "--out", str(out)]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert (record.target, record.drafter, record.kind) == ("Qwen/Qwen3-32B", "eagle3", DraftKind.HEAD)
    assert record.source == "vllm-metrics"


@pytest.mark.parametrize(
    ("kind", "found"), [("mtp", DraftKind.HEAD), ("dspark", DraftKind.BLOCK), ("pard", DraftKind.PARALLEL)]
)
def test_drafters_are_kinds(metrics: Path, tmp_path: Path, kind: str, found: DraftKind) -> None:
    out = tmp_path / "a.json"
    named = ["--target", "t", "--drafter", "own", "--set", f"kind={kind}"]
    assert main(["import", "--from", str(metrics), *named, "--out", str(out)]) == 0
    (record,) = AcceptanceRecords.load(out).records
    assert (record.drafter, record.kind) == ("own", found)


def test_every_drafter_is_a_kind() -> None:
    assert {*Drafter} < {*CONDITIONS["kind"].values}


def test_a_log_is_imported_and_planned_with(tmp_path: Path) -> None:
    log, out = tmp_path / "serve.log", tmp_path / "a.json"
    log.write_text(VLLM)
    assert main(["import", "--from", str(log), "--target", "t", "--set", "kind=dspark", "--out", str(out)]) == 0
    given = GivenAcceptance.parse(str(out))
    assert (len(given.rates), given.describe()) == (
        7,
        "a.json, of t with dspark (block), from rates by position",
    )


def test_a_trace_has_chains_only(fails: Fails, tmp_path: Path) -> None:
    sentence = fails("import", "--from", RECORDED / "trace.npz", "--set", "top_k=2", "--out", tmp_path / "a.json")
    assert "--set top_k is 2; it is of trees, and" in sentence


def test_what_holds_no_counts_says_how_to_give_them(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("accepted: 70 %\n")
    sentence = fails("import", "--from", tmp_path / "notes.txt", "--target", "t", "--out", tmp_path / "a.json")
    assert sentence.endswith("shares that you know by position need no file, only --acceptance 0.7,0.45")
