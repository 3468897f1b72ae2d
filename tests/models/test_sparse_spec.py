"""Sparse shapes: their parts, what devices hold of them, and the config.json they are read from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.families import FAMILIES, PLANNED_ONLY
from swiftspec.models.layer_parts import DenseNetwork, Experts, GroupedAttention, LatentAttention, LinearAttention
from swiftspec.models.published import known_model
from swiftspec.models.quantisation import draft_format
from swiftspec.models.sharding import sharded
from swiftspec.models.sparse_config import read_spec, spec_from_config
from swiftspec.models.sparse_spec import SparseSpec, in_layout
from swiftspec.models.spec import ModelSpec, dense_format, weight_bytes
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.policies.effects import Role

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}


def sparse(name: str) -> SparseSpec:
    spec = known_model(name).spec
    assert isinstance(spec, SparseSpec)
    return spec


def test_parameters_are_those_of_every_part() -> None:
    spec = spec_from_config(MIXTRAL, source="here")
    attention = 64 * (2 * 64 + 2 * 16)
    experts = 4 * 3 * 64 * 96
    router, norms = 4 * 64, 2 * 64
    assert spec.num_parameters == 2 * (attention + experts + router + norms) + 2 * 320 * 64 + 64
    assert spec.expert_parameters == 2 * experts
    assert spec.kv_bytes_per_token("bf16") == 2 * 2 * 2 * 16


def test_latent_attention_caches_one_vector_on_every_device() -> None:
    spec = sparse("deepseek-v3")
    assert spec.kv_bytes_per_token("bf16") == 61 * (512 + 64) * 2
    assert sharded(spec, 8).kv_bytes_per_token("bf16") == spec.kv_bytes_per_token("bf16")
    assert sum(isinstance(part, LatentAttention) for part in spec.attentions) == 1
    indexed = sparse("deepseek-v3.2").kv_bytes_per_token("bf16")
    assert indexed == spec.kv_bytes_per_token("bf16") + 61 * 128 * 2


def test_a_recurrent_model_keeps_a_state_for_every_verified_row() -> None:
    spec = sparse("qwen3.5-397b-a17b")
    (linear,) = (part for part in spec.attentions if isinstance(part, LinearAttention))
    state = linear.state_values * 4 * 45
    assert spec.fixed_bytes("bf16", context=1000, rows=0) == state
    assert spec.fixed_bytes("bf16", context=1000, rows=4) == 5 * state
    assert spec.is_recurrent
    assert not sparse("deepseek-v3").is_recurrent


def test_a_window_stops_growing() -> None:
    spec = sparse("gpt-oss-120b")
    window = 18 * 2 * 8 * 64 * 128 * 2
    assert spec.fixed_bytes("bf16", context=100_000, rows=0) == window
    assert spec.fixed_bytes("bf16", context=64, rows=0) == window // 2
    assert spec.kv_bytes_per_token("bf16") == 18 * 2 * 8 * 64 * 2


def test_experts_are_divided_by_width_or_whole_with_equal_weights() -> None:
    spec = sparse("qwen3-235b-a22b")
    by_width, whole = sharded(spec, 8), sharded(in_layout(spec, DeviceLayout(tp=8, ep=8)), 8)
    assert by_width.expert_parameters == whole.expert_parameters == spec.expert_parameters // 8
    assert by_width.num_heads == spec.num_heads
    held = by_width.num_parameters / spec.num_parameters
    assert 1 / 8 < held < 1 / 7


def test_what_a_group_cannot_divide() -> None:
    spec = sparse("gpt-oss-20b")
    assert spec.objection(8) is None
    assert spec.objection(3) == "its attention heads cannot be divided by 3"
    odd = Experts(num_experts=10, num_active=2, size=30)
    assert not odd.fits(4)
    assert odd.fits(5)
    assert not GroupedAttention(num_heads=16, num_kv_heads=2, head_dim=256).fits(3)
    with pytest.raises(ValueError, match="degree is 3; its attention heads cannot be divided by 3"):
        sharded(spec, 3)


@pytest.mark.parametrize(("quant", "bits"), [("mxfp4", 4.25), ("nvfp4", 4.5)])
def test_of_a_mixture_the_experts_alone_have_fp4(quant: str, bits: float) -> None:
    spec = sparse("gpt-oss-120b")
    others = spec.num_parameters - spec.expert_parameters
    assert weight_bytes(spec, quant) == round(spec.expert_parameters * bits / 8) + 2 * others
    dense = known_model("llama-3-8b").spec
    rest = dense.num_parameters - dense.matrix_parameters
    assert weight_bytes(dense, quant) == round(dense.matrix_parameters * bits / 8) + 2 * rest
    assert draft_format(quant) == "bf16"


def test_of_a_model_by_name_int4_is_the_format_of_its_checkpoint() -> None:
    """Files of 595 GB (moonshotai/Kimi-K2.5), whose experts alone are in int4, in groups of 32."""
    spec = known_model("kimi-k2.5").spec
    assert dense_format("int4", spec) == "bf16"
    assert weight_bytes(spec, "int4") == pytest.approx(595e9, rel=0.01)
    assert PlannedModel.of(Role.TARGET, "kimi-k2.5").stored_format == "int4"


def test_a_mixture_in_nvfp4_is_as_large_as_its_checkpoint() -> None:
    """MiniMax-M2.5-NVFP4 has files of 126 GiB in all, experts in nvfp4 and the rest in bf16 (its model card)."""
    assert weight_bytes(sparse("minimax-m2.5"), "nvfp4") / 2**30 == pytest.approx(126, rel=0.01)


def test_layers_alone_and_a_dense_one_beside_them() -> None:
    spec = sparse("deepseek-v3")
    last = spec.one_layer()
    assert isinstance(last, SparseSpec)
    assert isinstance(last.layers[0].feed_forward, Experts)
    first = spec.of_layers(0, 3)
    assert (first.num_layers, first.expert_parameters) == (3, 0)
    dense = spec.dense_layer()
    assert type(dense) is ModelSpec
    assert (dense.num_layers, dense.hidden_size, dense.intermediate_size, dense.head_dim) == (1, 7168, 18432, 128)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_experts_per_tok": 8}, "num_experts_per_tok is 8; expected at most the 4 experts of num_local_experts"),
        ({"num_local_experts": 0}, "num_local_experts is 0; expected a positive integer"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2; expected 1"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers is [1]; expected none"),
        ({"hidden_size": "big"}, "hidden_size is 'big'; expected a positive integer"),
        ({"model_type": "rwkv"}, "model_type is 'rwkv'; expected one of those that `swiftspec list models` has"),
    ],
)
def test_a_config_that_does_not_fit(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL | changes))
    with pytest.raises(ValueError, match="config") as raised:
        read_spec(tmp_path)
    assert f"config.json {sentence}" in str(raised.value)


def test_the_engine_refuses_what_can_only_be_planned_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL | {"model_type": "gpt_oss"}))
    with pytest.raises(ValueError, match="can be planned for, but not run"):
        ModelSpec.from_directory(tmp_path)
    assert set(PLANNED_ONLY) == set(FAMILIES)


def windows(spec: ModelSpec) -> list[int]:
    assert isinstance(spec, SparseSpec)
    return [layer.attention.window for layer in spec.layers if isinstance(layer.attention, GroupedAttention)]


DENSE = {key: value for key, value in MIXTRAL.items() if "experts" not in key} | {"num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 32}, [32] * 4),
        ({"model_type": "mistral"}, [4096] * 4),
        ({"model_type": "mixtral", "sliding_window": 32, "num_local_experts": 4}, [32] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 3},
            [0, 0, 0, 32],
        ),
        (
            {"model_type": "qwen3", "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2},
            [32, 0, 32, 0],
        ),
    ],
    ids=str,
)
def test_windows_of_usual_attention_are_planned(changes: dict[str, object], expected: list[int]) -> None:
    spec = spec_from_config(DENSE | changes, source="here")
    assert windows(spec) == expected
    full = sum(not window for window in expected)
    assert spec.kv_bytes_per_token("bf16") == full * 2 * spec.kv_size * 2


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "mistral", "sliding_window": None}, {"model_type": "qwen2", "sliding_window": 32}],
    ids=str,
)
def test_a_window_that_is_not_used_changes_nothing(changes: dict[str, object]) -> None:
    assert type(spec_from_config(DENSE | changes, source="here")) is ModelSpec


def test_gemma_has_the_sizes_that_its_config_leaves_out() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    values = {"model_type": "gemma3", "text_config": text | {"sliding_window": 1024, "sliding_window_pattern": 6}}
    spec = spec_from_config(values, source="google/gemma-3-4b-it")
    # Gemma 3 report (arXiv 2503.19786), Table 1: 675 M of embeddings and 3,209 M others.
    assert spec.num_parameters == pytest.approx(3.884e9, rel=0.01)
    assert windows(spec)[:6] == [1024] * 5 + [0]
    assert (spec.tie_word_embeddings, spec.max_position) == (True, 131072)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model_type": "nemotron_h", "mamba_num_heads": 64},
            "mamba_num_heads is 64; expected none, since Mamba layers",
        ),
        (
            {"model_type": "granitemoehybrid", "mamba_d_conv": 4, "layer_types": ["mamba", "attention"]},
            "mamba_d_conv is 4; expected none, since Mamba layers cannot be planned",
        ),
        ({"model_type": "deepseek_v4", "compress_ratios": [4, 128]}, "since attention to compressed tokens cannot be"),
        ({"model_type": "minimax_m3", "sparse_attention_config": {"sparse_topk_blocks": 16}}, "since attention to sel"),
        (
            {"model_type": "gemma4_text", "hidden_size_per_layer_input": 256},
            "since embeddings of every layer cannot be",
        ),
        (
            {"model_type": "mimo_v2_flash", "swa_v_head_dim": 128},
            "since values of another width than keys cannot be pl",
        ),
    ],
)
def test_layers_without_a_cost_are_refused_by_what_they_have(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"here: config\.json .* is .*; expected none, since ") as raised:
        spec_from_config(MIXTRAL | changes, source="here")
    assert sentence in str(raised.value)


def test_a_hybrid_whose_layers_all_have_attention_is_planned() -> None:
    hybrid = {"model_type": "granitemoehybrid", "mamba_d_conv": 4, "layer_types": ["attention"] * 2}
    spec = spec_from_config(DENSE | hybrid | {"num_hidden_layers": 2, "shared_intermediate_size": 96}, source="here")
    assert type(spec) is ModelSpec
    assert spec.intermediate_size == 96


def test_layers_may_lack_attention_or_a_network() -> None:
    kept = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 3.0}}
    left_out = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    blocks = [kept, {**kept, "attention": left_out["attention"]}, {**kept, "ffn": left_out["ffn"]}, left_out]
    spec = spec_from_config(DENSE | {"model_type": "nemotron-nas", "block_configs": blocks}, source="here")
    assert isinstance(spec, SparseSpec)
    assert spec.kv_bytes_per_token("bf16") == 2 * 2 * 2 * 8 * 2  # two layers, two heads of eight values
    assert spec.feed_forwards == {DenseNetwork(size=256): 2}  # 3 / 1.5 of 64, in 256s
    assert sharded(spec, 2).kv_bytes_per_token("bf16") == spec.kv_bytes_per_token("bf16") // 2
    block = {**kept, "ffn": {"replace_with_linear": True}}
    linear = DENSE | {"model_type": "nemotron-nas", "block_configs": [block] * 4}
    with pytest.raises(ValueError, match=r"block_configs\.ffn is \{'replace_with_linear': True\}; expected the att"):
        spec_from_config(linear, source="here")


def test_a_family_with_the_layers_of_llama_is_as_dense_as_llama() -> None:
    llama = spec_from_config(DENSE | {"model_type": "llama"}, source="here")
    for kind in ("granite", "seed_oss", "glm4", "mimo"):
        assert spec_from_config(DENSE | {"model_type": kind}, source="here") == replace(llama, architecture=kind)


def test_llama_4_has_experts_in_every_second_layer_and_chunks_in_three_of_four() -> None:
    text = {
        "model_type": "llama4_text",
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 128,
        "attention_chunk_size": 32,
    }
    spec = spec_from_config({"model_type": "llama4", "text_config": DENSE | text}, source="here")
    assert windows(spec) == [32, 32, 32, 0]
    assert isinstance(spec, SparseSpec)
    kinds = [layer.feed_forward for layer in spec.layers]
    experts = Experts(num_experts=4, num_active=1, size=96, shared_size=96)
    assert kinds == [DenseNetwork(size=128), experts] * 2


def test_a_shared_indexer_has_neither_weights_nor_keys() -> None:
    glm = known_model("glm-5").spec
    assert isinstance(glm, SparseSpec)
    part = glm.layers[0].attention
    assert isinstance(part, LatentAttention)
    assert part.indexer is not None
    shared = replace(part, indexer=replace(part.indexer, is_shared=True))
    assert part.kv_values - shared.kv_values == part.indexer.head_dim
    assert part.num_parameters(64) - shared.num_parameters(64) == 32 * 128 * 2048 + 64 * (128 + 32)


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config"])
def test_the_language_model_is_read_where_a_file_has_it(place: str) -> None:
    # OpenGVLab/InternVL3-8B has it in llm_config, deepseek-ai/deepseek-vl2 in language_config.
    values = {"model_type": "outer", "hidden_size": 3, place: DENSE}
    assert spec_from_config(values, source="here") == spec_from_config(DENSE, source="here")


def test_the_language_model_of_one_that_reads_images_is_planned() -> None:
    text = {key: value for key, value in DENSE.items() if key != "model_type"} | {"model_type": "qwen3_vl_text"}
    values = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": text}
    spec = spec_from_config(values, source="here")
    assert (spec.architecture, spec.tie_word_embeddings) == ("qwen3", True)
    with pytest.raises(ValueError, match=r"model_type is 'rwkv_text'; expected one of those that `swiftspec list mod"):
        spec_from_config({"text_config": text | {"model_type": "rwkv_text"}}, source="here")
