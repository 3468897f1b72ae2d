"""`plan --fleet --engine`: a fleet of another engine's replicas, its command, and its cache in fp8."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import swiftspec
from swiftspec.api.planning import simulate_load
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.workload import Workload
from swiftspec.cli.app import main
from swiftspec.reports.formatting import engine

pytestmark = pytest.mark.usefixtures("little_text")

Fails = Callable[..., str]


CLIENTS = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--device", "h100", "--devices", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def served_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of vLLM's for clients, with its keys and values in fp8."""
    out = tmp_path_factory.mktemp("fleet") / "fleet.json"
    lengths = ["--prompt-tokens", "96", "--output-tokens", "48"]
    load = ["--load", "closed:300", "--fleet", "8", "--limit", "ttft=3000,tpot=12,p=90", *lengths]
    settings = "kv_cache_dtype=fp8,max_num_seqs=64,max_num_batched_tokens=1024,gpu_memory_utilization=0.8"
    assert main(["plan", *CLIENTS, *load, "--engine", "vllm@0.15", "--set", settings, "--out", str(out)]) == 0
    return out


def test_a_fleet_of_another_engine_has_only_what_that_runs_and_serves_by_its_rules(served_elsewhere: Path) -> None:
    made = Plan.load(served_elsewhere)
    assert made.fleet is not None
    assert made.under_load is not None
    kinds = {kind.policy for kind in made.fleet.kinds}
    assert kinds <= {"serial_chain", "autoregressive", "prompt_lookup", "suffix_decoding"}, "no trees, no own devices"
    assert not any(kind.control or kind.num_drafts for kind in made.fleet.kinds)
    assert (made.fleet.unit, made.fleet.rate) == ("clients", 300)
    assert made.under_load.engine.startswith("vLLM 0.15 with steps of at most 1024 tokens and 64 requests")
    assert made.fleet.point.mean_batch <= 64


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (
            "vllm",
            {
                "--max-num-seqs": "64",
                "--max-num-batched-tokens": "1024",
                "--max-model-len": "144",
                "--gpu-memory-utilization": "0.8",
                "--kv-cache-dtype": "fp8",
                "--enable-prefix-caching": None,
            },
        ),
        (
            "sglang",
            {
                "--max-running-requests": "64",
                "--context-length": "144",
                "--mem-fraction-static": "0.7",
                "--kv-cache-dtype": "fp8_e4m3",
            },
        ),
        ("trtllm", {"--max_batch_size": "64", "--max_seq_len": "144", "--config": "trtllm.yaml"}),
    ],
)
def test_a_fleets_command_says_what_the_plan_assumed_and_how_many_to_start(
    engine: str, options: dict[str, str | None], served_elsewhere: Path, tmp_path: Path
) -> None:
    found = tmp_path / "export.json"
    assert main(["export", "--plan", str(served_elsewhere), "--engine", engine, "--json", str(found)]) == 0
    exported = json.loads(found.read_text())
    fleet = Plan.load(served_elsewhere).fleet
    assert fleet is not None
    assert exported["num_replicas"] == fleet.num_replicas > 1
    assert not exported["basis"], "the planned replica itself"
    words = exported["arguments"]
    for name, value in options.items():
        following = words[words.index(name) + 1 : words.index(name) + 2]
        if name == "--mem-fraction-static":  # weights and cache, without graphs and workspace
            assert 0.7 < float(following[0]) < 0.8
        else:
            assert value is None or following == [value]
    if engine == "trtllm":
        lines = exported["files"]["trtllm.yaml"].splitlines()
        assert {'  dtype: "fp8"', "  enable_block_reuse: true"} <= set(lines)


def test_a_plan_says_that_its_cache_is_in_fp8(served_elsewhere: Path) -> None:
    planned = Plan.load(served_elsewhere)
    assert (planned.kv_dtype, planned.longest_request) == ("fp8", 144)
    assert "keys and values are in fp8 (lossy)" in engine(planned)


def test_a_saved_plans_settings_are_those_of_its_simulations(served_elsewhere: Path) -> None:
    planned = swiftspec.Planned.load(served_elsewhere)
    share = Workload.load(served_elsewhere.with_name("fleet.workload.json"))
    assert planned.plan.under_load is not None
    predicted = planned.plan.under_load.predictions[planned.plan.chosen.policy]
    assert simulate_load(planned, share, engine="vllm@0.15").metrics == predicted.metrics


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("kv_cache_dtype=int3", "kv_cache_dtype is int3; expected auto, bfloat16 or fp8"),
        ("gpu_memory_utilization=1.5", "gpu_memory_utilization is 1.5; expected more than 0 and at most 1"),
    ],
)
def test_an_engines_cache_and_memory_are_checked(setting: str, message: str, fails: Fails) -> None:
    assert message in fails("plan", *CLIENTS, "--engine", "vllm", "--set", setting)


def test_this_packages_engine_has_no_fp8_cache(fails: Fails) -> None:
    assert "--set kv_cache_dtype is unknown" in fails("plan", *CLIENTS, "--set", "kv_cache_dtype=fp8")
