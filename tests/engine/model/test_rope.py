"""Scalings of rotary embeddings, against transformers' own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from swiftspec.engine.model.rope import rotations
from swiftspec.models.spec import ModelSpec
from tests.engine.checkpoints import DYNAMIC_ROPE, VOCAB_SIZE, reference_model, write_checkpoint
from tests.engine.decoders import load_kernels
from tests.engine.forwards import forward, prefill

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 83,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
NUM_POSITIONS = 3000


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},  # deepseek-ai/deepseek-coder-33b-base
        YARN,  # Qwen/Qwen3-32B's model card
        YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.25},
        YARN | {"mscale": 0.707, "mscale_all_dim": 0.5},
        YARN | {"factor": 1.0},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 8},  # no ramp
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ],
    ids=str,
)
def test_rotations_are_those_of_transformers(rope: dict[str, Any]) -> None:
    config = LlamaConfig(**SHAPE, rope_parameters=rope)
    if rope["rope_type"] == "default":
        frequencies, length = 1.0 / rope["rope_theta"] ** (torch.arange(0, 128, 2) / 128), 1.0
    else:
        frequencies, length = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    angles = torch.outer(torch.arange(NUM_POSITIONS, dtype=torch.float32), frequencies)
    spec = ModelSpec.from_config(SHAPE | {"rope_parameters": rope}, source="here")
    torch.testing.assert_close(
        rotations(spec, NUM_POSITIONS)[:, 0], torch.polar(torch.full_like(angles, length), angles), rtol=0, atol=5e-4
    )


def test_dynamic_scaling_is_that_of_a_text_which_transformers_generates(tmp_path: Path) -> None:
    """Prompt within the original context, token after token beyond it: to the end, three times as long."""
    original = 24
    write_checkpoint(tmp_path, "dynamic-rope", max_position_embeddings=original)
    tokens = torch.randint(VOCAB_SIZE, (3 * original,), generator=torch.manual_seed(1)).tolist()
    reference, cache, expected = reference_model(tmp_path), DynamicCache(), []
    with torch.no_grad():
        reference(torch.tensor([tokens[:20]]), past_key_values=cache)
        for token in tokens[20:]:
            expected.append(reference(torch.tensor([[token]]), past_key_values=cache).logits[0, -1])
    decoder = load_kernels(tmp_path)
    ours = decoder.new_cache()
    prefill(decoder, tokens[:20], ours)
    rest = tokens[20:]
    positions, bits = range(20, len(tokens)), [(1 << row) - 1 for row in range(len(rest))]
    torch.testing.assert_close(forward(decoder, rest, positions, bits, ours), torch.stack(expected), rtol=0, atol=1e-4)


def test_dynamic_scaling_leaves_the_original_context_alone() -> None:
    theta = {"rope_theta": DYNAMIC_ROPE["rope_theta"]}
    dynamic = {"rope_parameters": DYNAMIC_ROPE, "max_position_embeddings": 50}
    plain, scaled = (rotations(ModelSpec.from_config(SHAPE | rope, source="here"), 100) for rope in (theta, dynamic))
    differs = (scaled - plain).abs().amax(dim=(1, 2)) > 1e-6
    assert not differs[:50].any()
    assert differs[50:].all()
