"""Sparse shapes: their parts, what devices hold of them, and the config.json they are read from."""

import json
from pathlib import Path

import pytest

from swiftspec.models import known_model, sharded, weight_bytes
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import Experts, GroupedAttention, LatentAttention, LinearAttention
from swiftspec.models.sparse_config import _FAMILIES, read_spec, spec_from_config
from swiftspec.models.sparse_spec import SparseSpec, in_layout
from swiftspec.models.spec import PLANNED_ONLY, ModelSpec

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


def test_experts_alone_are_quantised_in_mxfp4() -> None:
    spec = sparse("gpt-oss-120b")
    others = spec.num_parameters - spec.expert_parameters
    assert weight_bytes(spec, "mxfp4") == round(spec.expert_parameters * 4.25 / 8) + 2 * others
    dense = known_model("llama-3-8b").spec
    assert weight_bytes(dense, "mxfp4") == weight_bytes(dense, "bf16")


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
        ({"model_type": "rwkv"}, "model_type is 'rwkv'; expected one of llama, mistral, qwen2, qwen3"),
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
    assert set(PLANNED_ONLY) == set(_FAMILIES)
