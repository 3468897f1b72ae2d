"""`plan --device` for sparse targets: a plan with a head, and bad input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from tests.export.plans import candidate, plan

pytestmark = pytest.mark.usefixtures("little_text")

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


def test_a_mixture_with_a_head_is_planned_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    pair = ["--target", "Qwen/Qwen3-30B-A3B", "--draft", "eagle3", "--dtype", "fp8"]
    more = ["--policy", "head_chain", "--prompt-tokens", "96", "--layout", "tp2ep2", "--out", str(out)]
    assert main(["plan", *pair, *ON_TWO, *more]) == 0
    assert "devices are in the layout tp2ep2" in " ".join(capsys.readouterr().out.split())
    found = Plan.load(out)
    assert found.layout == "tp2ep2"
    assert (found.target.model, found.draft.model) == ("qwen3-30b-a3b", "eagle3")
    assert found.chosen.shape
    assert "experts chosen independently" in [row.change for row in found.sensitivities]


def test_a_layout_of_a_plan_is_that_of_its_simulations_and_of_its_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: Fails
) -> None:
    out = str(tmp_path / "plan.json")
    pair = [
        "--target",
        "qwen3-30b-a3b",
        "--draft",
        "eagle3",
        "--dtype",
        "fp8",
        "--engine",
        "vllm",
        "--layout",
        "dp2ep2",
    ]
    load = ["--load", "closed:8", "--set", "load_requests=16", "--prompt-tokens", "96", "--output-tokens", "32"]
    assert main(["plan", *pair, *ON_TWO, *load, "--out", out]) == 0
    assert "steps of at most 16384 tokens and 2048 requests" in " ".join(capsys.readouterr().out.split())
    found = Plan.load(out)
    assert (found.layout, set(map(len, found.chosen.groups.values()))) == ("dp2ep2", {2})
    replayed = ["--plan", out, "--load", str(tmp_path / "plan.workload.json")]
    assert main(["simulate", *replayed, "--engine", "vllm"]) == 0
    assert fails("simulate", *replayed, "--engine", "swiftspec").endswith(
        "the plan's layout is dp2ep2, and swiftspec has no attention in data parallel"
    )
    assert main(["export", "--plan", out]) == 0
    command = capsys.readouterr().out
    assert "--tensor-parallel-size 1 \\\n    --data-parallel-size 2 \\\n    --enable-expert-parallel" in command


def test_a_plan_with_a_wrong_layout_is_refused(tmp_path: Path) -> None:
    values = json.loads(plan(candidate("autoregressive", target=4)).to_json())
    (tmp_path / "wrong.json").write_text(json.dumps(values | {"layout": "x"}))
    with pytest.raises(ValueError, match="layout is 'x'; string should match pattern"):
        Plan.load(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--target", "glm-4.5", "--draft", "mtp", "--dtype", "int8"],
            "--target is glm-4.5; the op tables of h200-sxm ",
        ),
        (["--target", "mixtral-8x7b", "--draft", "eagle3", "--degrees", "3"], "--degrees is 3; of mixtral-8x7b, its "),
        (
            ["--target", "gemma-3-27b", "--draft", "eagle3", "--layout", "tp2ep2"],
            "--layout is tp2ep2; gemma-3-27b has no experts",
        ),
        (
            ["--target", "qwen3-30b-a3b", "--draft", "eagle3", "--layout", "dp2"],
            "--layout is dp2; swiftspec has no attention in data parallel",
        ),
        (
            ["--target", "qwen3-30b-a3b", "--draft", "eagle3", "--engine", "vllm", "--layout", "dp2tp2"],
            "--layout is dp2tp2; it takes 4 devices of one node, which has 2",
        ),
        (
            ["--target", "qwen3-30b-a3b", "--draft", "eagle3", "--engine", "vllm", "--layout", "dp2", "--degrees", "1"],
            "--degrees is 1; of qwen3-30b-a3b, the layout dp2 takes 2 devices, not 1",
        ),
        (
            ["--target", "llama-3-8b", "--draft", "llama-3.2-1b", "--engine", "vllm", "--layout", "dp2"],
            "--layout is dp2; llama-3-8b has no experts, so that its ranks would share nothing",
        ),
        (
            ["--target", "qwen3-30b-a3b", "--draft", "eagle3", "--set", "expert_correlation=2"],
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
