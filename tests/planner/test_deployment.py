"""Machines and models as flags name them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from swiftspec.cli.plan_flags import deployment_of
from swiftspec.cli.verbs.plans import PlanFlags
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.shipped import shipped_tables
from swiftspec.costmodel.steps import StepWork
from swiftspec.models import known_model
from swiftspec.models.heads import Drafter
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import prepare
from swiftspec.planner.planned_model import PlannedModel, planned_pair
from swiftspec.planner.search.option import Option
from swiftspec.policies import DraftKind
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tests.cli.tokenizer_files import write_byte_tokenizer, write_printable_tokenizer

LLAMA = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16}
LLAMA |= {"intermediate_size": 8192, "max_position_embeddings": 4096}


def directory(folder: Path, name: str, *, vocab_size: int = 128256, **changed: object) -> str:
    """A model of which nothing is there but its config.json."""
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": vocab_size} | changed))
    return str(folder / name)


def verify_s(machine: Deployment, *, degree: int = 1) -> float:
    pair = planned_pair("llama-3-8b", "llama-3.2-1b")
    profile = machine.profile(*pair, max_context=64)
    return profile.step(StepKey(Role.TARGET, Phase.VERIFY, degree, rows=8, context=64)).mean_s


def test_what_is_not_said_of_a_machine_is_usual() -> None:
    machine = deployment_of(PlanFlags(target="t", device="b200", devices=4))
    assert machine == Deployment(device="b200", num_devices=4, engine="swiftspec", context=512)
    formats = machine.as_stored(*planned_pair("llama-3-8b", "llama-3.2-1b"))
    assert (formats.quant, formats.draft_quant) == ("bf16", "bf16")


def test_a_draft_is_quantised_as_its_target_unless_said_otherwise() -> None:
    alike = deployment_of(PlanFlags(target="t", device="b200", dtype="fp8"))
    assert (alike and alike.draft_quant) == "fp8"
    other = deployment_of(PlanFlags(target="t", device="b200", dtype="fp8,bf16"))
    assert (other and other.draft_quant) == "bf16"


def test_no_device_is_no_machine() -> None:
    assert deployment_of(PlanFlags(target="t", devices=4)) is None


def test_models_are_known_by_name_repository_and_directory(tmp_path: Path) -> None:
    named = PlannedModel.of(Role.TARGET, "qwen2-72b")
    assert PlannedModel.of(Role.TARGET, "Qwen/Qwen2-72B") == named
    assert (named.name, named.vocabulary) == ("qwen2-72b", "qwen2")
    local = PlannedModel.of(Role.DRAFT, directory(tmp_path, "mine"))
    assert (local.name, local.spec.num_layers, local.vocabulary) == (str(tmp_path / "mine"), 8, None)
    assert PlannedModel.of(Role.TARGET, "demo/target").name == "demo/target"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("/nowhere", "draft is '/nowhere'; there is no such directory"),
        ("Lama-3.2-3B", "draft is 'Lama-3.2-3B'; did you mean llama-3.2-3b"),
        ("grok-1", "draft is 'grok-1'; that is of an architecture that"),
        ("llama-3.2", "draft is 'llama-3.2', which may be llama-3.2-1b or llama-3.2-3b; name one of them"),
        ("demo/none", "model 'demo/none': there is no directory "),
    ],
)
def test_a_model_that_is_nowhere(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PlannedModel.of(Role.DRAFT, name)


def test_a_directory_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        PlannedModel.of(Role.DRAFT, str(tmp_path))


def test_a_local_draft_fits_a_named_target_by_the_size_of_its_vocabulary(tmp_path: Path) -> None:
    _, draft = planned_pair("llama-3-70b", directory(tmp_path, "mine"))
    assert draft.spec.num_layers == 8
    with pytest.raises(ValueError, match=r"other with a vocabulary of 32000 tokens; that of llama-3-70b has 128256"):
        planned_pair("llama-3-70b", directory(tmp_path, "other", vocab_size=32000))


def test_a_vocabulary_padded_differently_is_the_same_one(tmp_path: Path) -> None:
    assert known_model("qwen2-72b").spec.vocab_size - known_model("qwen2-1.5b").spec.vocab_size == 128
    planned_pair("qwen2-72b", directory(tmp_path, "mine", vocab_size=known_model("qwen2-1.5b").spec.vocab_size))


def test_two_directories_are_told_apart_by_their_tokenizers(tmp_path: Path) -> None:
    target = directory(tmp_path, "target", num_hidden_layers=16)
    draft = directory(tmp_path, "draft")
    for model in (target, draft):
        write_printable_tokenizer(Path(model))
    planned_pair(target, draft)
    write_byte_tokenizer(Path(draft))
    with pytest.raises(ValueError, match="have different vocabularies"):
        planned_pair(target, draft)


def test_op_tables_of_ones_own_are_used_and_said(tmp_path: Path) -> None:
    shipped = shipped_tables("l40s")
    assert shipped is not None
    usual = Deployment(device="l40s", num_devices=1)
    same = Deployment(device="l40s", num_devices=1, op_tables=Path(shutil.copy(shipped, tmp_path / "same.npz")))
    assert verify_s(same) == verify_s(usual)
    tables = OpTables.load(shipped)
    gemm = tables.tables["gemm"]
    slow = {**gemm, "latency_s": 2 * gemm["latency_s"]}
    replace(tables, tables={**tables.tables, "gemm": slow}).save(tmp_path / "slow.npz")
    slower = Deployment(device="l40s", num_devices=1, op_tables=tmp_path / "slow.npz")
    assert 1.7 < verify_s(slower) / verify_s(usual) < 2
    pair = planned_pair("llama-3-8b", "llama-3.2-1b")
    assert str(tmp_path / "slow.npz") in slower.profile(*pair, max_context=64).sources[0]


@pytest.mark.parametrize("engine", ["swiftspec", "vllm@0.15", "llamacpp"])
def test_a_given_host_time_takes_the_place_of_the_engines(engine: str) -> None:
    without, given = (Deployment(device="l40s", num_devices=1, engine=engine, host_s=host_s) for host_s in (0.0, 4e-4))
    assert verify_s(given) - verify_s(without) == pytest.approx(4e-4)
    assert verify_s(Deployment(device="l40s", num_devices=1, engine=engine)) > verify_s(without)


def test_a_host_time_is_refused_where_published_forwards_have_it_in_them() -> None:
    with pytest.raises(ValueError, match=r"host_s is 0\.0004; forwards of swiftspec in int4 are published, host time"):
        Deployment(device="h100", num_devices=1, quant="int4", host_s=4e-4)


def test_a_load_under_an_engine_has_the_given_host_time_and_says_so() -> None:
    step_s = []
    for host_s in (0.0, 4e-4):
        serving = Deployment(device="l40s", num_devices=1, engine="vllm", host_s=host_s).serving(
            *planned_pair("llama-3-8b", "llama-3.2-1b")
        )
        assert serving is not None
        assert serving.described().startswith(
            f"vLLM 0.33.0 (host time of {1e3 * host_s:g} ms a step, given) with steps"
        )
        work = StepWork(sequences=4, rows_each=1, cache_tokens=2048, sampled=4)
        step_s.append(serving.on(1, context=1024).step_s(work))
    assert step_s[1] - step_s[0] == pytest.approx(4e-4)


def test_int4_is_published_forwards_for_this_packages_engine_only() -> None:
    own, llama = (
        Deployment(device="h100", num_devices=1, quant="int4", engine=name) for name in ("swiftspec", "llamacpp")
    )
    pair = planned_pair("llama-3-8b", "llama-3.2-1b")
    sources = [" ".join(machine.profile(*pair, max_context=64).sources) for machine in (own, llama)]
    assert ["forwards in int4 by published figures" in source for source in sources] == [True, False]


def test_op_tables_have_to_be_of_the_device_or_its_twin() -> None:
    assert (
        Deployment(device="h800-sxm", num_devices=1, op_tables=shipped_tables("h100-sxm")).kernels.device.name
        == "h800-sxm"
    )
    with pytest.raises(ValueError, match="op tables of h100-sxm; expected those of h200-sxm"):
        _ = Deployment(device="h200-sxm", num_devices=1, op_tables=shipped_tables("h100-sxm")).kernels


def test_an_engine_that_the_tables_do_not_know(tmp_path: Path) -> None:
    tables = OpTables.load(shipped_tables("h200-sxm") or Path())
    kept = {name: tables.rows(name, framework="sglang") for name in ("gemm", "attention", "quantisation")}
    replace(tables, tables={**tables.tables, **kept}).save(tmp_path / "ops.npz")
    machine = Deployment(device="h200-sxm", num_devices=1, op_tables=tmp_path / "ops.npz")
    assert verify_s(machine) > 0  # by what there is
    with pytest.raises(ValueError, match="engine is vllm; the op tables of h200-sxm hold sglang"):
        _ = replace(machine, engine="vllm").kernels


def test_a_directory_is_planned_with_what_stands_in_for_it(tmp_path: Path) -> None:
    target, draft = planned_pair("llama-3.3-70b", directory(tmp_path, "mine"))
    inputs = prepare(Deployment(device="h200-sxm", num_devices=1, context=20), target=target, draft=draft)
    # Figures are published of the target with another draft.
    assert inputs.acceptance.provenance is Provenance.ASSUMED
    assert f"with {draft.name} is published; llama-3.3-70b with llama-3.2-1b stands in" in inputs.acceptance.basis
    assert inputs.acceptance.warning.startswith("known only on InstructCoder (code editing, ")


def test_a_head_is_planned_in_its_targets_shape() -> None:
    target, head = planned_pair("llama-3.3-70b", "EAGLE3")
    assert (head.name, head.kind, head.spec.num_layers) == ("eagle3", DraftKind.HEAD, 1)
    deployment = Deployment(device="h100", num_devices=8, quant="fp8")
    profile = deployment.profile(target, head, max_context=1024)
    (step,) = (
        point
        for point in profile.steps
        if (point.role, point.phase, point.degree, point.rows, point.context) == (Role.DRAFT, Phase.EXPAND, 8, 1, 1024)
    )
    seconds = {part.name: part.seconds for part in step.parts}
    # The features' product reads three quarters of a layer's two largest products, and the layer is there once.
    assert 0 < seconds["qkv of embeddings"] < seconds["features"] < seconds["gate_up"] + seconds["down"]


def test_a_parallel_draft_is_named_after_the_model_it_was_made_of() -> None:
    _, draft = planned_pair("llama-3.3-70b", "pard:llama-3.2-1b")
    assert (draft.name, draft.kind) == ("pard:llama-3.2-1b", DraftKind.PARALLEL)
    assert draft.spec == known_model("llama-3.2-1b").spec


def test_a_directory_is_planned_in_its_own_format_unless_said_otherwise(tmp_path: Path) -> None:
    target = directory(tmp_path, "fp8", quantization_config={"quant_method": "fp8"}, num_hidden_layers=32)
    pair = planned_pair(target, directory(tmp_path, "plain"))
    asked = Deployment(device="h100", num_devices=1)
    own = asked.as_stored(*pair)
    assert (own.quant, own.draft_quant) == ("fp8", "bf16")
    given = Deployment(device="h100", num_devices=1, quant="int4").as_stored(*pair)
    assert (given.quant, given.draft_quant) == ("int4", "int4")
    head = asked.as_stored(pair[0], pair[0].draft("eagle3"))
    assert (head.quant, head.draft_quant) == ("fp8", "fp8")


def test_a_format_that_is_not_known_is_refused_where_none_is_given(tmp_path: Path) -> None:
    strange = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    target = directory(tmp_path, "strange", quantization_config=strange, num_hidden_layers=32)
    pair = planned_pair(target, directory(tmp_path, "plain"))
    with pytest.raises(ValueError, match=r"config.json: quantization_config.quant_method is 'bitsandbytes'; expected"):
        Deployment(device="h100", num_devices=1).as_stored(*pair)
    assert Deployment(device="h100", num_devices=1, quant="bf16").as_stored(*pair).quant == "bf16"


def test_nvfp4_is_read_and_priced_where_devices_have_its_units(tmp_path: Path) -> None:
    stored = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    pair = planned_pair(directory(tmp_path, "nvfp4", quantization_config=stored, num_hidden_layers=32), "eagle3")
    profile = Deployment(device="b200", num_devices=1).profile(*pair, max_context=64)
    assert (profile.target.dtype, profile.draft.dtype) == ("nvfp4", "bf16")
    with pytest.raises(ValueError, match="quant is nvfp4; h100-sxm has no fp4 units, which it needs"):
        Deployment(device="h100", num_devices=1).profile(*pair, max_context=64)


def test_a_block_drafter_is_planned_with_at_most_its_block(tmp_path: Path) -> None:
    fields = {"mask_token_id": 5, "target_layer_ids": [1, 20]}
    path = directory(
        tmp_path,
        "drafter",
        architectures=["DFlashDraftModel"],
        block_size=4,
        dflash_config=fields,
        hidden_size=4096,
    )
    draft = planned_pair("llama-3-8b", path)[1]
    assert (draft.drafter, draft.block_tokens) == (Drafter.DFLASH, 3)
    allowed = AllowedDegrees(block_tokens=draft.block_tokens)
    groups = {Role.TARGET: (0,), Role.DRAFT: (0,)}
    options = [Option(policy=ParallelChain(num_draft_tokens=count), groups=groups) for count in (3, 4)]
    assert allowed.objection(options[0]) is None
    assert allowed.objection(options[1]) == "parallel_chain: the draft's blocks have 3 tokens"


def test_a_small_model_with_layers_for_multi_token_prediction_is_a_model(tmp_path: Path) -> None:
    draft = directory(tmp_path, "small", num_nextn_predict_layers=1)
    assert planned_pair("llama-3-8b", draft)[1].kind is DraftKind.SERIAL


def test_an_engine_that_does_not_run_on_a_device_is_refused() -> None:
    with pytest.raises(
        ValueError, match="engine is trtllm; expected one of swiftspec, vllm, sglang, llamacpp, which run"
    ):
        Deployment(device="mi300x", num_devices=8, engine="trtllm")
    assert Deployment(device="mi300x", num_devices=8, engine="vllm").device == "mi300x"
