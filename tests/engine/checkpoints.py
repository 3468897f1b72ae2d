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
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 20000.0, "factor": 4.0, "original_max_position_embeddings": 40}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 20000.0, "factor": 3.0}
# One per feature: GQA, tied head, QKV bias, head norms, explicit head dim, attention bias, rope scaling.
VARIANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 16}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 6}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 4.0}}),
    "yarn-rope": ("qwen3", {"head_dim": 16, "rope_parameters": YARN_ROPE}),
    "dynamic-rope": ("llama", {"rope_parameters": DYNAMIC_ROPE}),  # texts within the original context
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-tied-bias": ("qwen3", {"head_dim": 10, "tie_word_embeddings": True, "attention_bias": True}),
}
# Each with another share of its experts active, and weights of a row's experts that add up to one or do not.
MIXTURES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 40}),
    "mixtral-one-active": ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 1, "tie_word_embeddings": True}),
    "qwen3-moe": ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
                                "head_dim": 16}),
    "qwen3-moe-normalised": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 20,
                                           "head_dim": 10, "norm_topk_prob": True, "attention_bias": True}),
}  # fmt: skip  # a model and its fields together


def write_checkpoint(directory: Path, variant: str, *, seed: int = 0, **changes: Any) -> Path:
    """A random model of `variant`, dense or a mixture, in `directory`; its norms and biases are random too.

    changes: of its configuration.
    """
    architecture, overrides = (VARIANTS | MIXTURES)[variant]
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
    model = model_class(config_class(**(shape | dict(overrides) | changes))).float()
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
