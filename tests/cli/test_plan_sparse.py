"""`plan --device` for sparse targets: a plan with a head, and bad input."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main

Fails = Callable[..., str]
ON_TWO = ["--device", "h200", "--devices", "2", "--jobs", "1"]
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


@pytest.fixture(scope="module", autouse=True)
def _little_text() -> Iterator[None]:
    """Enough for a plan, not for a good one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.planner.for_device.NUM_PROMPTS", 2)
        patch.setattr("swiftspec.planner.for_device.NUM_NEW_TOKENS", 32)
        yield


def test_a_mixture_with_a_head_is_planned_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    pair = ["--target", "Qwen/Qwen3-30B-A3B", "--draft", "eagle3", "--dtype", "fp8"]
    more = ["--policy", "head_chain", "--prompt-tokens", "96", "--layout", "tp2ep2", "--out", str(out)]
    assert main(["plan", *pair, *ON_TWO, *more]) == 0
    assert "devices are in the layout tp2ep2" in " ".join(capsys.readouterr().out.split())
    plan = Plan.load(out)
    assert plan.layout == "tp2ep2"
    assert (plan.target.model, plan.draft.model) == ("qwen3-30b-a3b", "eagle3")
    assert plan.chosen.shape
    assert "experts chosen independently" in [row.change for row in plan.sensitivities]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--target", "glm-4.5", "--draft", "mtp", "--dtype", "fp8"],
            "--target is glm-4.5; the op tables of h200-sxm ",
        ),
        (["--target", "mixtral-8x7b", "--draft", "eagle3", "--degrees", "3"], "--degrees is 3; of mixtral-8x7b, its "),
        (
            ["--target", "gemma-3-27b", "--draft", "eagle3", "--layout", "tp2ep2"],
            "--layout is tp2ep2; gemma-3-27b has no experts",
        ),
        (
            ["--target", "qwen3-30b-a3b", "--draft", "mtp", "--set", "expert_correlation=2"],
            "--set expert_correlation is 2; ",
        ),
        (["--target", "deepseek-v3", "--draft", "mtp", "--dtype", "fp8"], "the target in fp8 does not fit on 2 h200"),
    ],
)
def test_bad_input(fails: Fails, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    out = tmp_path / "plan.json"
    assert fails("plan", *arguments, *ON_TWO, "--out", str(out)).startswith(sentence)
    assert not out.exists()


def test_a_config_with_more_experts_per_token_than_experts(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL | {"num_experts_per_tok": 9}))
    found = fails("plan", "--target", str(tmp_path), "--draft", "eagle3", *ON_TWO, "--out", str(tmp_path / "plan.json"))
    assert found.endswith("num_experts_per_tok is 9; expected at most the 8 experts of num_local_experts")


def test_experts_that_devices_cannot_hold_whole(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL | {"num_local_experts": 7}))
    arguments = ["--target", str(tmp_path), "--draft", "eagle3", "--layout", "tp2ep2"]
    found = fails("plan", *arguments, *ON_TWO, "--out", str(tmp_path / "plan.json"))
    assert found.startswith("--layout is tp2ep2; of ")
    assert found.endswith(", 7 whole experts cannot be divided by 2")


def test_a_sparse_target_with_other_layers_cannot_be_run(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL | {"model_type": "gpt_oss"}))
    found = fails(
        "profile", "--target", str(tmp_path), "--draft", "demo/draft", "--out", str(tmp_path / "profile.json")
    )
    assert "config.json model_type is 'gpt_oss'; expected one of llama, mistral, qwen2, qwen3" in found
    assert found.endswith("its layers can be planned for, but not run")
