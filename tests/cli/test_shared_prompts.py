"""Workloads whose prompts begin alike, planned for and simulated under an engine that serves and under ours."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.cli.sections import show_plan

Fails = Callable[..., str]

ASKED = ["--target", "llama-3.1-8b", "--draft", "eagle3", "--device", "h100", "--devices", "1", "--jobs", "1"]
ENGINE = ["--engine", "vllm@0.15"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workload of conversations, and a plan for it under vLLM."""
    made = tmp_path_factory.mktemp("chats")
    chats = ["--set", "turns=3,think_time_s=1,system_prompt_tokens=400"]
    lengths = ["--prompt-tokens", "fixed:100", "--output-tokens", "fixed:24"]
    written = ["--arrivals", "poisson:1", "--requests", "30", *chats, *lengths, "--out", f"{made}/chats.json"]
    assert main(["workload", *written]) == 0
    assert main(["plan", *ASKED, *ENGINE, "--load", f"{made}/chats.json", "--out", f"{made}/plan.json"]) == 0
    return made


def test_a_plan_says_what_is_found_in_the_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(Plan.load(folder / "plan.json"))
    said = " ".join(capsys.readouterr().out.split())
    assert "of the prompts' tokens are those of earlier requests; " in said
    assert "% are found in the prefix cache, which holds " in said
    assert " without a draft." in said


def test_a_simulation_under_the_engine_repeats_the_plans_figures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["simulate", "--plan", str(folder / "plan.json"), "--load", str(folder / "chats.json")]
    assert main([*asked, *ENGINE, "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    load = Plan.load(folder / "plan.json").under_load
    assert load is not None
    prediction = load.predictions[content["policy"]]
    assert content["metrics"] == prediction.metrics.model_dump(mode="json")
    assert prediction.cache is not None
    assert content["cache"] == prediction.cache.model_dump(mode="json")
    assert main([*asked, *ENGINE, "--set", "enable_prefix_caching=false", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["cache"]["hit_rate"] == 0.0


def test_our_engine_reads_the_prompts_whole_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--plan", str(folder / "plan.json"), "--load", str(folder / "chats.json")]) == 0
    assert "This package's engine has no prefix cache and reads the prompts whole." in capsys.readouterr().out


def test_a_pool_that_only_decodes_is_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "pool.json"
    pool = ["--set", "transfer_ms=5"]
    assert main(["plan", *ASKED, *ENGINE, "--load", f"{folder}/chats.json", *pool, "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "its cache comes 5.00 ms later" in said
    assert "More of a split into prefill and decoding is not planned." in said
    load = Plan.load(out).under_load
    assert load is not None
    assert load.decode_pool is not None
    assert load.decode_pool.transfer_s == 0.005


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "transfer_ms=5"], "--set transfer_ms is 5; it needs --load"),
        (
            ["--load", "chats.json", "--set", "transfer_ms=0"],
            "--set transfer_ms is 0; this package's engine reads prompts itself",
        ),
        (
            ["--load", "chats.json", "--fleet", "8", "--limit", "tpot=50"],
            "requests[1].think_time_s is 1; a fleet at a rate cannot wait for the answer",
        ),
        (
            ["--load", "chats.json", "--fleet", "8", "--limit", "tpot=50", "--set", "transfer_ms=0", *ENGINE],
            "--set transfer_ms is 0; fleets read their prompts themselves",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    fails: Fails, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(folder)
    assert fails("plan", *ASKED, *arguments, "--out", "other.json").startswith(complaint)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--load", "chats.json", *ENGINE, "--set", "max_running=4"], "--set max_running is 4; it is this package's"),
        (["--load", "chats.json", *ENGINE, "--timeline", "t.json"], "--timeline is t.json; it is this package's"),
        (["--load", "chats.json", "--set", "max_num_seqs=4"], "--set max_num_seqs is unknown; expected max_running, "),
        (["--load", "chats.json", "--engine", "auto"], "--engine is 'auto', which is called swiftspec now"),
        (["--load", "chats.json", *ENGINE, "--set", "seqs=4"], "--set seqs is no limit of vLLM"),
        ([*ENGINE], "--engine is vllm@0.15; it is only for --load"),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(
    fails: Fails, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(folder)
    assert fails("simulate", "--plan", "plan.json", *arguments).startswith(complaint)
