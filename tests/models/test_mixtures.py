"""Mixtures of experts that the engine runs: their config.json, sizes, shards and inflation."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.head_spec import HeadSpec
from swiftspec.models.inflation import Inflation
from swiftspec.models.layer_parts import Experts
from swiftspec.models.sharding import shard_of, sharded
from swiftspec.models.sparse_config import spec_from_config
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec

# mistralai/Mixtral-8x7B-v0.1
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": None,
}
# Qwen/Qwen3-30B-A3B
QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "use_sliding_window": False,
}
DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 83,
}


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    """Spec of a config with fields changed; None leaves a field out."""
    values = {key: value for key, value in (config | changes).items() if value is not None}
    return ModelSpec.from_config(values, source="here")


def test_published_mixtures_have_their_sizes() -> None:
    mixtral, qwen = spec_of(MIXTRAL), spec_of(QWEN)
    assert mixtral.num_parameters == pytest.approx(46.7e9, rel=1e-3)
    assert qwen.num_parameters == pytest.approx(30.5e9, rel=2e-3)
    assert mixtral.experts == Experts(num_experts=8, num_active=2, size=14336)
    assert qwen.experts == Experts(num_experts=128, num_active=8, size=768)
    assert (mixtral.intermediate_size, qwen.intermediate_size) == (14336, 768)
    assert (mixtral.head_dim, mixtral.qk_norm, qwen.head_dim, qwen.qk_norm) == (128, False, 128, True)


@pytest.mark.parametrize(
    ("config", "changes", "num_experts", "num_active", "is_normalised"),
    [
        (MIXTRAL, {"num_local_experts": None, "num_experts_per_tok": None}, 8, 2, True),
        (QWEN, {"num_experts": None, "num_experts_per_tok": None}, 128, 8, True),
        (QWEN, {"norm_topk_prob": None}, 128, 8, False),
        (QWEN, {"num_experts": None, "num_local_experts": 64}, 64, 8, True),
        (QWEN, {"num_experts": None, "n_routed_experts": 64}, 64, 8, True),
        (MIXTRAL, {"norm_topk_prob": False}, 8, 2, True),
    ],
)
def test_experts_are_read_in_both_spellings_and_with_transformers_defaults(
    config: dict[str, Any], changes: dict[str, Any], num_experts: int, num_active: int, is_normalised: bool
) -> None:
    experts = spec_of(config, **changes).experts
    assert experts is not None
    found = experts.num_experts, experts.num_active, experts.is_normalised
    assert found == (num_experts, num_active, is_normalised)


def test_fields_left_out_have_transformers_defaults() -> None:
    mixtral = spec_of(MIXTRAL, rope_theta=None, rms_norm_eps=None, max_position_embeddings=None)
    assert (mixtral.rope_theta, mixtral.rms_norm_eps, mixtral.max_position) == (1e6, 1e-5, 131072)
    qwen = spec_of(QWEN, rope_theta=None, max_position_embeddings=None, head_dim=None)
    assert (qwen.rope_theta, qwen.rms_norm_eps, qwen.max_position, qwen.head_dim) == (1e4, 1e-6, 32768, 64)
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    assert spec_of(MIXTRAL, rope_theta=None, rope_parameters=parameters).rope_theta == 5e5


@pytest.mark.parametrize(
    ("config", "changes", "sentence"),
    [
        (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_tok is 9; expected at most the 8 experts of num_local"),
        (QWEN, {"num_experts_per_tok": 129}, "num_experts_per_tok is 129; expected at most the 128 experts of num_exp"),
        (QWEN, {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; expected 1"),
        (QWEN, {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]; expected none"),
        (QWEN, {"moe_intermediate_size": None}, "moe_intermediate_size is None; expected a positive integer"),
        (QWEN, {"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes'; expected true or false"),
        (MIXTRAL, {"sliding_window": 4096}, "sliding_window is 4096; expected null"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(
    config: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"here: config.json {sentence}") as raised:
        spec_of(config, **changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("config", [MIXTRAL, QWEN], ids=["mixtral", "qwen3_moe"])
def test_the_shape_for_plans_is_that_of_the_engine(config: dict[str, Any]) -> None:
    own, planned = spec_of(config), spec_from_config(config, source="here")
    assert isinstance(planned, SparseSpec)
    assert planned.experts == own.experts
    assert planned.num_parameters == pytest.approx(own.num_parameters, rel=1e-4)
    assert planned.expert_parameters == own.expert_parameters
    assert planned.kv_bytes_per_token("bf16") == own.kv_bytes_per_token("bf16")
    assert own.experts is not None
    assert planned.intermediate_size == own.experts.num_active * own.experts.size


def test_each_expert_is_cut_by_width_and_padded() -> None:
    spec = spec_of(DENSE, model_type="mixtral", num_local_experts=4, intermediate_size=40)
    shards = [shard_of(spec, 3, rank) for rank in range(3)]
    assert [shard.spec for shard in shards] == [sharded(spec, 3)] * 3
    share = shards[0].spec
    assert (share.intermediate_size, share.num_heads) == (16, 2)  # of 4 heads, two on each of two ranks
    assert share.experts == Experts(num_experts=4, num_active=2, size=16)
    assert [list(shard.neurons) for shard in shards] == [[*range(16)], [*range(16, 32)], [*range(32, 40)]]


def test_copies_of_a_network_are_a_mixture() -> None:
    dense = spec_of(DENSE)
    mixture = Inflation.parse("layers=3,experts=8").inflated(dense)
    assert (mixture.architecture, mixture.num_layers) == ("mixtral", 3)
    assert mixture.experts == Experts(num_experts=8, num_active=2, size=96)
    assert Inflation.parse("experts=1").inflated(dense).experts == Experts(num_experts=1, num_active=1, size=96)
    qwen = Inflation.parse("experts=4,active=3,intermediate=100").inflated(spec_of(DENSE, model_type="qwen3"))
    assert (qwen.architecture, qwen.experts) == ("qwen3_moe", Experts(num_experts=4, num_active=3, size=100))
    deeper = Inflation.parse("layers=5,intermediate=120").inflated(mixture)
    assert deeper.experts == Experts(num_experts=8, num_active=2, size=120)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("experts=0", "experts is '0'; expected a positive integer"),
        ("experts=abc", "experts is 'abc'; expected a positive integer"),
        ("active=9,experts=4", "active is 9; expected at most experts, which is 4"),
        ("active=2", "active is 2; expected at most experts, which is not given"),
    ],
)
def test_malformed_experts_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"inflation: {sentence}"):
        Inflation.parse(text)


@pytest.mark.parametrize(
    ("config", "changes", "sentence"),
    [
        (DENSE, {"model_type": "qwen2"}, "no model with experts has the attention of this qwen2 model"),
        (DENSE, {"attention_bias": True}, "no model with experts has the attention of this llama model"),
        (MIXTRAL, {}, "expected none, since the model has its own"),
    ],
)
def test_experts_that_no_architecture_has_are_refused(
    config: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"inflation: experts is 4; .*{sentence}"):
        Inflation(experts=4).inflated(spec_of(config, **changes))


def test_drafts_that_read_hidden_states_are_dense(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    with pytest.raises(ValueError, match="model_type is 'mixtral'; expected a dense one in a draft that reads hidden"):
        HeadSpec.from_directory(tmp_path)
