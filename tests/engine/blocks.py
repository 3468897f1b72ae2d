"""Random block drafters for small checkpoints, and their definition in plain torch."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.checkpoints import VOCAB_SIZE

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, SIZE = 2, 6, 2, 8
HIDDEN, INNER = 48, 72
EPS, THETA = 1e-6, 10000.0
TARGET_LAYERS = (2, 0)  # whose outputs are read; the target has three
MASK = VOCAB_SIZE - 1
NUM_MASKS = 4  # of a block


def write_block_drafter(directory: Path, target: Path, **changed: object) -> Path:
    """A random block drafter of a small llama target, with norms of its heads."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    def norm(size: int) -> Tensor:
        return torch.rand(size, generator=generator) + 0.5

    weights = {
        "fc.weight": random(HIDDEN, len(TARGET_LAYERS) * HIDDEN),
        "hidden_norm.weight": norm(HIDDEN),
        "norm.weight": norm(HIDDEN),
    }
    for layer in range(NUM_LAYERS):
        weights |= {
            f"layers.{layer}.{name}.weight": weight
            for name, weight in {
                "input_layernorm": norm(HIDDEN),
                "post_attention_layernorm": norm(HIDDEN),
                "self_attn.q_proj": random(NUM_HEADS * SIZE, HIDDEN),
                "self_attn.k_proj": random(NUM_KV_HEADS * SIZE, HIDDEN),
                "self_attn.v_proj": random(NUM_KV_HEADS * SIZE, HIDDEN),
                "self_attn.o_proj": random(HIDDEN, NUM_HEADS * SIZE),
                "self_attn.q_norm": norm(SIZE),
                "self_attn.k_norm": norm(SIZE),
                "mlp.gate_proj": random(INNER, HIDDEN),
                "mlp.up_proj": random(INNER, HIDDEN),
                "mlp.down_proj": random(HIDDEN, INNER),
            }.items()
        }
    config = json.loads((target / "config.json").read_text()) | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": NUM_LAYERS,
        "head_dim": SIZE,
        "block_size": 1 + NUM_MASKS,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TARGET_LAYERS)},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | changed))
    save_file(weights, directory / "model.safetensors")
    return directory


class Reference:
    """A block drafter by its definition, on the hidden states of transformers' target."""

    def __init__(self, drafter: Path, target: Path) -> None:
        self._weights = load_file(drafter / "model.safetensors")
        self._target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)

    @torch.no_grad()
    def logits(self, text: Sequence[int]) -> Tensor:
        """Logits [NUM_MASKS, V] at masks after a text of which the target has verified all but the last token."""
        context = self._context(text[:-1])
        rows = self._target.model.embed_tokens(torch.tensor([text[-1], *[MASK] * NUM_MASKS]))
        first = len(text) - 1
        for layer in range(NUM_LAYERS):
            rows = self._layer(layer, rows, context, first)
        logits: Tensor = _rms_norm(rows, self._weights["norm.weight"])[1:] @ self._target.lm_head.weight.T
        return logits

    def _context(self, tokens: Sequence[int]) -> Tensor:
        if not tokens:
            return torch.empty(0, HIDDEN)
        states = self._target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        # After the last layer transformers gives the normalised state; the drafter reads what comes before the norm.
        assert max(TARGET_LAYERS) == 2
        inputs: list[Tensor] = []
        hook = self._target.model.norm.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0]))
        self._target(torch.tensor([tokens]))
        hook.remove()
        features = torch.cat([inputs[0] if layer == 2 else states[layer + 1][0] for layer in TARGET_LAYERS], -1)
        return _rms_norm(features @ self._weights["fc.weight"].T, self._weights["hidden_norm.weight"])

    def _layer(self, layer: int, rows: Tensor, context: Tensor, first: int) -> Tensor:
        def weight(name: str) -> Tensor:
            return self._weights[f"layers.{layer}.{name}.weight"]

        inputs = _rms_norm(rows, weight("input_layernorm"))
        both = torch.cat([context, inputs])
        queries = (inputs @ weight("self_attn.q_proj").T).view(-1, NUM_HEADS, SIZE)
        keys = (both @ weight("self_attn.k_proj").T).view(-1, NUM_KV_HEADS, SIZE)
        values = (both @ weight("self_attn.v_proj").T).view(-1, NUM_KV_HEADS, SIZE)
        queries = _turned(_rms_norm(queries, weight("self_attn.q_norm")), first)
        keys = _turned(_rms_norm(keys, weight("self_attn.k_norm")), 0)
        outputs = []
        for head in range(NUM_HEADS):
            group = head // (NUM_HEADS // NUM_KV_HEADS)
            scores = queries[:, head] @ keys[:, group].T / math.sqrt(SIZE)
            outputs.append(scores.softmax(-1) @ values[:, group])
        rows = rows + torch.cat(outputs, -1) @ weight("self_attn.o_proj").T
        inner = _rms_norm(rows, weight("post_attention_layernorm"))
        gated = torch.nn.functional.silu(inner @ weight("mlp.gate_proj").T) * (inner @ weight("mlp.up_proj").T)
        return rows + gated @ weight("mlp.down_proj").T


def _rms_norm(values: Tensor, weight: Tensor) -> Tensor:
    return weight * values / (values.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def _turned(heads: Tensor, first: int) -> Tensor:
    """Heads [rows, heads, SIZE] at positions from `first` on, rotated in halves."""
    frequencies = THETA ** (-torch.arange(0, SIZE, 2) / SIZE)
    angles = (first + torch.arange(len(heads)))[:, None] * frequencies
    cosine, sine = (function(angles).repeat(1, 2)[:, None] for function in (torch.cos, torch.sin))
    low, high = heads.chunk(2, -1)
    return heads * cosine + torch.cat([-high, low], -1) * sine
