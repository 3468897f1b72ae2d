"""Writes a model of a published shape with random weights, to time engines at real sizes.

python -m tools.real_size.random_model llama-3.2-1b FOLDER

Its text means nothing; its tokenizer is the bundled target's.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from swiftspec.engine.model.weights.checkpoint import weight_shapes
from swiftspec.models.spec import ModelSpec, model_directory

_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
}
# From the config.json that each is published with.
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama-3.2-1b": {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
        "smollm2-135m": {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
        },
    }
)
_SPREAD = 0.02  # standard deviation of the weights


def write_random(name: str, directory: Path, *, seed: int = 0) -> None:
    """Write the model of SHAPES as a Hugging Face directory, in bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_COMMON | dict(SHAPES[name]), indent=1))
    shutil.copyfile(model_directory("demo/target") / "tokenizer.json", directory / "tokenizer.json")
    generator = torch.Generator().manual_seed(seed)
    save_file(
        {
            name: torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, _SPREAD, generator=generator)
            for name, shape in weight_shapes(ModelSpec.from_directory(directory)).items()
        },
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )


if __name__ == "__main__":
    write_random(sys.argv[1], Path(sys.argv[2]))
