"""A small ModelSpec for tests that need a shape and no weights."""

import dataclasses
from typing import Any

from swiftspec.models.spec import ModelSpec


def small_spec(**changes: Any) -> ModelSpec:
    """Two layers, 4 query heads on 2 key/value heads."""
    spec = ModelSpec(
        architecture="llama",
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=50,
        max_position=128,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
        eos_token_ids=(0,),
    )
    return dataclasses.replace(spec, **changes)
