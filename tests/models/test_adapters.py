"""Adapters' configurations, as releases of PEFT write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.tenants import Adapter

# Every field that PEFT 0.21 writes of a LoRA adapter, at what it writes of one without extras.
PEFT: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "Qwen/Qwen2-VL-2B-Instruct",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 16,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 8,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj", "up_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
CHANGES: dict[str, Any] = {
    "alora_invocation_tokens": [128000, 42, 7],
    "alpha_pattern": {"q_proj": 32},
    "arrow_config": {"top_k": 3},
    "bias": "all",
    "corda_config": {"corda_method": "ipm"},
    "ensure_weight_tying": True,
    "fan_in_fan_out": True,
    "init_lora_weights": "pissa_niter_16",
    "layer_replication": [[0, 4], [2, 6]],
    "loftq_config": {"loftq_bits": 4},
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "rank_pattern": {"q_proj": 16},
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "trainable_token_indices": [5],
    "use_bdlora": True,
    "use_dora": True,
    "use_qalora": True,
    "peft_type": "ADALORA",
    "a_field_of_next_year": 0.5,
}
HARMLESS: dict[str, Any] = {
    "init_lora_weights": "gaussian",
    "eva_config": {"rho": 2.0},
    "layers_to_transform": [0, 1],
    "exclude_modules": ["lm_head"],
    "lora_dropout": 0.3,
    "auto_mapping": {"base_model_class": "Gemma4ForConditionalGeneration", "unsloth_fixed": True},
    "a_field_of_next_year": None,
}


def adapter(directory: Path, **changes: object) -> Adapter:
    (directory / "adapter_config.json").write_text(json.dumps(PEFT | changes))
    return Adapter.read(directory)


def test_an_adapter_without_extras_is_read(tmp_path: Path) -> None:
    assert adapter(tmp_path) == Adapter(rank=8, scale=2.0)


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_that_changes_the_result_is_refused_by_name(tmp_path: Path, field: str) -> None:
    with pytest.raises(ValueError, match=rf"adapter_config\.json: {field} is .*; expected "):
        adapter(tmp_path, **{field: CHANGES[field]})


@pytest.mark.parametrize("field", HARMLESS)
def test_a_field_that_changes_nothing_is_no_matter(tmp_path: Path, field: str) -> None:
    assert adapter(tmp_path, **{field: HARMLESS[field]}) == Adapter(rank=8, scale=2.0)
