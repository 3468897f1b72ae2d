"""Small random models of one base, as directories that hold nothing but config.json and weights; without torch."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
LAYER = {
    "input_layernorm.weight": (16,),
    "self_attn.q_proj.weight": (16, 16),
    "self_attn.k_proj.weight": (8, 16),
    "self_attn.v_proj.weight": (8, 16),
    "self_attn.o_proj.weight": (16, 16),
    "post_attention_layernorm.weight": (16,),
    "mlp.gate_proj.weight": (24, 16),
    "mlp.up_proj.weight": (24, 16),
    "mlp.down_proj.weight": (16, 24),
}
LAYER_BYTES = 4 * sum(int(np.prod(shape)) for shape in LAYER.values())
Tensors = dict[str, NDArray[Any]]


def base_tensors(seed: int = 0) -> Tensors:
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 16)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(4) for name, shape in LAYER.items()}
    shapes |= {"model.norm.weight": (16,), "lm_head.weight": (32, 16)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(directory: Path, tensors: Tensors, **config: object) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def fine_tuned(base: Path, directory: Path, *, layers: Collection[int], noise: float = 0.1, seed: int = 1) -> Path:
    """A copy of the base with noise on the weights of some layers."""
    random = np.random.default_rng(seed)
    tensors = load_file(base / "model.safetensors")
    for name, tensor in tensors.items():
        if any(name.startswith(f"model.layers.{layer}.") for layer in layers):
            tensors[name] = tensor + noise * random.standard_normal(tensor.shape).astype(np.float32)
    return write_model(directory, tensors)


def factors(rank: int = 2, *, matrix: str = "self_attn.q_proj", shape: tuple[int, int] = (16, 16)) -> Tensors:
    """A pair of factors for a matrix of every layer."""
    outputs, inputs = shape
    stems = [f"base_model.model.model.layers.{layer}.{matrix}" for layer in range(4)]
    a = {f"{stem}.lora_A.weight": np.ones((rank, inputs), np.float32) for stem in stems}
    return a | {f"{stem}.lora_B.weight": np.zeros((outputs, rank), np.float32) for stem in stems}


def write_adapter(directory: Path, tensors: Tensors, config: Mapping[str, object] | None = None) -> Path:
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(config or {"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory
