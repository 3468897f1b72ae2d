"""Layers read from config.json, against the models that transformers builds of the same file."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.families import FAMILIES
from swiftspec.models.layer_parts import GroupedAttention
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.sparse_spec import SparseSpec

pytestmark = pytest.mark.extra("engine")

# Families whose code is with their checkpoints, or whose defaults are no model; real files of each are among those of
# test_published_weights.py.
ELSEWHERE = ("kimi_k2", "kimi_linear", "mimo", "nemotron-nas")
SIZES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "q_lora_rank": None},
    "gemma4_text": {
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "hidden_size_per_layer_input": 0,
        "moe_intermediate_size": 256,
        "num_experts": 16,
        "num_global_key_value_heads": 2,
        "num_kv_shared_layers": 0,
        "top_k_experts": 2,
    },
    "granitemoehybrid": {"layer_types": ["attention"] * 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2, "intermediate_size": 1024},
}


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - set(ELSEWHERE)))
def test_a_family_has_the_parameters_of_transformers_model(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind](num_hidden_layers=6, vocab_size=200_000, **SIZES.get(kind, {}))
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    real = sum(parameter.numel() for parameter in model.parameters())
    assert read_spec(tmp_path).num_parameters == pytest.approx(real, rel=1e-3)


@pytest.mark.parametrize("kind", ["cohere2", "gemma2", "gemma3_text", "gemma4_text", "olmo3"])
def test_windows_that_a_file_leaves_out_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind](num_hidden_layers=12, **SIZES.get(kind, {}))
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    left = {name: value for name, value in json.loads(path.read_text()).items() if name != "layer_types"}
    path.write_text(json.dumps(left))
    spec = read_spec(tmp_path)
    assert isinstance(spec, SparseSpec)
    windows = [part.window for part in (layer.attention for layer in spec.layers) if isinstance(part, GroupedAttention)]
    assert windows == [config.sliding_window * (layer == "sliding_attention") for layer in config.layer_types]
