"""Small random checkpoints of every supported architecture, written by transformers, which is also the reference."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB_SIZE = 83
_CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# One per feature: GQA, tied head, QKV bias, head norms, explicit head dim, attention bias, rope scaling.
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 16}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 6}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-tied-bias": ("qwen3", {"head_dim": 10, "tie_word_embeddings": True, "attention_bias": True}),
}
_FEW_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "head_dim": 16}
# Mixtures of experts, one per feature: both layouts of weights, a tied head, weights that do not add up to one.
SPARSE_VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mixtral": ("mixtral", {"intermediate_size": 37}),
    "mixtral-tied": ("mixtral", {"num_local_experts": 4, "tie_word_embeddings": True}),
    "qwen3-moe": ("qwen3_moe", {**_FEW_EXPERTS, "moe_intermediate_size": 41}),
    "qwen3-moe-whole": ("qwen3_moe", {**_FEW_EXPERTS, "moe_intermediate_size": 64, "norm_topk_prob": True}),
}


def write_checkpoint(directory: Path, variant: str, *, seed: int = 0) -> Path:
    """A random model of `variant` in `directory`, its norms and biases random too."""
    architecture, overrides = {**VARIANTS, **SPARSE_VARIANTS}[variant]
    config_class, model_class = _CLASSES[architecture]
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "eos_token_id": 3,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**(shape | dict(overrides)))).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_()
    model.save_pretrained(directory)
    return directory


def reference_model(directory: Path) -> PreTrainedModel:
    """The model by transformers in fp32; its grouped products do not take experts of odd sizes."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, experts_implementation="eager"
    )
    return model


def reference_logits(directory: Path, tokens: list[int]) -> Tensor:
    """Logits [tokens, vocab] of transformers in fp32."""
    model = reference_model(directory)
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits
