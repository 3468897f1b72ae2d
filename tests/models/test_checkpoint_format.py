"""The format of weights, from quantization_config and hf_quant_config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.quantisation import Part, StoredWeights
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.spec import ModelSpec, dense_format, weight_bytes

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}
ATTENTION = 256 * 64 * (4 + 2 + 2 + 4)
NETWORK = 3 * 256 * 512
MIXTURE = LLAMA | {
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 128,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}


def read(directory: Path, config: dict[str, Any], quantisation: object = None, beside: object = None) -> ModelSpec:
    """Spec of a directory with these files."""
    more = {} if quantisation is None else {"quantization_config": quantisation}
    (directory / "config.json").write_text(json.dumps(config | more))
    if beside is not None:
        (directory / "hf_quant_config.json").write_text(json.dumps(beside))
    return read_spec(directory)


def stored(directory: Path, config: dict[str, Any], quantisation: object) -> StoredWeights:
    found = read(directory, config, quantisation).stored
    assert found is not None
    return found


def group(bits: int, kind: str, size: int | None, *targets: str, symmetric: bool = True) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "group_size": size, "symmetric": symmetric}
    return {"targets": list(targets) or ["Linear"], "weights": weights}


def tensors(*groups: dict[str, Any], ignore: list[str]) -> dict[str, Any]:
    named = {f"group_{number}": one for number, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ignore}


def test_a_plain_checkpoint_has_no_format_of_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA).stored is None


@pytest.mark.parametrize(
    ("quantisation", "name", "bits"),
    [
        ({"quant_method": "fp8"}, "fp8", 8.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 128**2),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", 8.0),
        (tensors(group(8, "float", None), ignore=["lm_head"]), "fp8", 8.0),
        (tensors(group(8, "int", None), ignore=["lm_head"]), "int8", 8.0),
        (tensors(group(4, "int", 128), ignore=["lm_head"]), "int4", 4 + 16 / 128),
        (tensors(group(4, "int", 32, symmetric=False), ignore=["lm_head"]), "int4", 4 + 20 / 32),
        (tensors(group(4, "float", 16), ignore=["lm_head"]), "nvfp4", 4.5),
        (tensors(group(4, "float", 32), ignore=["re:.*lm_head"]), "mxfp4", 4.25),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "int4", 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8.0),
        ({"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}, "nvfp4", 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8", 8.0),
    ],
    ids=lambda value: str(value)[:60],
)
def test_every_matrix_of_the_layers_has_the_format_and_its_scales(
    tmp_path: Path, quantisation: dict[str, Any], name: str, bits: float
) -> None:
    spec = read(tmp_path, LLAMA, quantisation)
    assert spec.stored is not None
    assert (spec.stored.name, spec.stored.dense) == (name, name)
    matrices = 4 * (ATTENTION + NETWORK)
    rest = spec.num_parameters - matrices
    assert weight_bytes(spec, name) == round(matrices * bits / 8) + 2 * rest


def test_a_given_format_replaces_that_of_the_checkpoint(tmp_path: Path) -> None:
    plain, spec = read(tmp_path, LLAMA), read(tmp_path, LLAMA, {"quant_method": "fp8"})
    assert weight_bytes(spec, "int4") == weight_bytes(plain, "int4")
    assert weight_bytes(spec, "bf16") == 2 * spec.num_parameters


def test_the_format_is_read_from_the_file_of_its_own(tmp_path: Path) -> None:
    algorithm = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.0*"]}
    found = read(tmp_path, LLAMA, beside={"quantization": algorithm}).stored
    assert found is not None
    assert (found.name, found.objection) == ("nvfp4", "")


@pytest.mark.parametrize(
    "kept",
    [
        ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"],
        ["language_model.model.layers.0.self_attn.[qkv]_proj"],
        ["re:.*layers\\.0\\.self_attn\\.[qkv]_proj"],
    ],
    ids=["names", "stars", "an expression"],
)
def test_modules_that_are_left_out_stay_in_16_bits(tmp_path: Path, kept: list[str]) -> None:
    if "[qkv]" in kept[0] and not kept[0].startswith("re:"):
        kept = [kept[0] + "*"]
    found = stored(tmp_path, LLAMA, tensors(group(8, "float", None), ignore=["lm_head", *kept]))
    share = 256 * 64 * (4 + 2 + 2) / (4 * ATTENTION)
    assert dict(found.bits_by_part)[Part.ATTENTION] == pytest.approx(8 + 8 * share)
    assert dict(found.bits_by_part)[Part.NETWORKS] == 8


def test_a_layer_with_a_star_is_that_layer_alone(tmp_path: Path) -> None:
    config = LLAMA | {"num_hidden_layers": 12}
    algorithm = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "model.layers.1*"]}
    assert dict(stored(tmp_path, config, algorithm).bits_by_part)[Part.NETWORKS] == pytest.approx((11 * 4.5 + 16) / 12)


def test_a_gate_is_no_gate_projection(tmp_path: Path) -> None:
    kept = ["gate", "e_score_correction_bias", "lm_head"]
    found = stored(tmp_path, MIXTURE, {"quant_method": "fp8", "modules_to_not_convert": kept})
    assert dict(found.bits_by_part)[Part.EXPERTS] == 8


def test_experts_alone_are_quantised_where_all_else_is_left_out(tmp_path: Path) -> None:
    kept = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    spec = read(tmp_path, DEEPSEEK, tensors(group(4, "int", 32), ignore=kept))
    assert spec.stored is not None
    assert (spec.stored.name, spec.stored.dense) == ("int4", "bf16")
    assert dense_format("int4", spec) == "bf16"
    assert weight_bytes(spec, "int4") == spec.expert_parameters * 4.5 / 8 + 2 * (
        spec.num_parameters - spec.expert_parameters
    )


def test_a_format_for_each_layer_is_read_module_by_module(tmp_path: Path) -> None:
    layers = {
        f"model.language_model.layers.{layer}.{module}": {"quant_algo": algorithm}
        for layer in range(4)
        for module, algorithm in (("self_attn.q_proj", "FP8"), ("mlp.up_proj", "NVFP4"), ("mlp.down_proj", "NVFP4"))
    }
    found = stored(tmp_path, LLAMA, {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert found.name == "nvfp4"
    assert dict(found.bits_by_part)[Part.ATTENTION] == pytest.approx(16 - 8 * 4 / 12)
    assert dict(found.bits_by_part)[Part.NETWORKS] == pytest.approx((4.5 + 4.5 + 16) / 3)
    assert dict(found.bits_by_part)[Part.HEAD] == 16


@pytest.mark.parametrize(
    ("quantisation", "sentence"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'; expected one of fp8"),
        ({"quant_method": ["fp8"]}, r"quant_method is \['fp8'\]; expected one of"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3; expected 4 or 8"),
        ({"quant_method": "awq", "bits": 4, "group_size": "all"}, "group_size is 'all'; expected a number of weights"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size is \[128\]; expected two numbers"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'; expected"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["re:("]},
            "modules_to_not_convert has a regular expression",
        ),
        ({"quant_algo": "W2A16"}, "quant_algo is 'W2A16'; expected one of FP8"),
        ({"quant_method": "compressed-tensors"}, "config_groups is None; expected an object of groups"),
        (tensors(group(2, "int", 32), ignore=[]), "config_groups.weights is 'int of 2 bits'; expected int of 4 or 8"),
        ("fp8", "quantization_config is 'fp8'; expected an object"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_format_that_is_not_known_is_one_sentence(tmp_path: Path, quantisation: object, sentence: str) -> None:
    found = stored(tmp_path, LLAMA, quantisation)
    with pytest.raises(ValueError, match=sentence) as raised:
        raise ValueError(found.objection)
    assert str(tmp_path / "config.json") in str(raised.value)
    assert "\n" not in str(raised.value)
