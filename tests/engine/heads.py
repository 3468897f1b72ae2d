"""Random heads for small checkpoints, and their definition in plain torch: nothing is folded, packed or cached."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.engine.checkpoints import VOCAB_SIZE

LAYOUTS = ("eagle3", "speculators", "mtp")
NUM_HEADS, NUM_KV_HEADS, SIZE = 6, 2, 8
HIDDEN, INNER, DRAFT_VOCAB = 48, 72, 29
EPS, THETA = 1e-6, 10000.0
LAYERS = (2, 1, 3)  # the target has three


def write_head(directory: Path, target: Path, layout: str, **changed: object) -> Path:
    """A random head of a small llama target; an MTP layer is written into a copy of the target's checkpoint."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    def norm() -> Tensor:
        return torch.rand(HIDDEN, generator=generator) + 0.5

    width = HIDDEN if layout == "mtp" else 2 * HIDDEN
    layer = {
        "input_layernorm.weight": norm(),
        "post_attention_layernorm.weight": norm(),
        "self_attn.q_proj.weight": random(NUM_HEADS * SIZE, width),
        "self_attn.k_proj.weight": random(NUM_KV_HEADS * SIZE, width),
        "self_attn.v_proj.weight": random(NUM_KV_HEADS * SIZE, width),
        "self_attn.o_proj.weight": random(HIDDEN, NUM_HEADS * SIZE),
        "mlp.gate_proj.weight": random(INNER, HIDDEN),
        "mlp.up_proj.weight": random(INNER, HIDDEN),
        "mlp.down_proj.weight": random(HIDDEN, INNER),
    }
    config = json.loads((target / "config.json").read_text())
    weights: dict[str, Tensor] = {}
    if layout == "mtp":
        prefix = "model.layers.3."
        weights |= load_file(target / "model.safetensors")
        weights |= {f"{prefix}{name}": norm() for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
        weights[f"{prefix}eh_proj.weight"] = random(HIDDEN, 2 * HIDDEN)
        config["num_nextn_predict_layers"] = 1
    else:
        prefix = "midlayer." if layout == "eagle3" else "layers.0."
        kept = torch.randperm(VOCAB_SIZE, generator=generator)[:DRAFT_VOCAB].sort().values
        weights |= {f"{prefix}hidden_norm.weight": norm(), "norm.weight": norm()}
        weights |= {"fc.weight": random(HIDDEN, 3 * HIDDEN), "lm_head.weight": random(DRAFT_VOCAB, HIDDEN)}
        weights["d2t"] = kept - torch.arange(DRAFT_VOCAB)
        weights["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill_(0, kept, value=True)
        config |= {"num_hidden_layers": 1, "draft_vocab_size": DRAFT_VOCAB}
        own = {"eagle_aux_hidden_state_layer_ids": list(LAYERS)}
        if layout == "eagle3":
            config |= {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": own}
        else:
            weights["embed_tokens.weight"] = random(VOCAB_SIZE, HIDDEN)
            config = {
                "architectures": ["Eagle3Speculator"],
                "speculators_model_type": "eagle3",
                "transformer_layer_config": config,
                "draft_vocab_size": DRAFT_VOCAB,
                "norm_before_residual": True,
                **own,
            }
    weights |= {prefix + name: weight for name, weight in layer.items()}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | changed))
    save_file(weights, directory / "model.safetensors")
    return directory


class Reference:
    """A head by its definition, on the hidden states of transformers' target."""

    def __init__(self, head: Path, target: Path, layout: str) -> None:
        self._weights = load_file(head / "model.safetensors")
        self._target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self._layout = layout
        self._prefix = {"eagle3": "midlayer.", "speculators": "layers.0.", "mtp": "model.layers.3."}[layout]
        own = self._weights.get("embed_tokens.weight")
        self._embedding = self._target.model.embed_tokens.weight if own is None else own

    @torch.no_grad()
    def logits(self, path: Sequence[int], *, num_verified: int) -> Tensor:
        """Logits [V] after a text of which the target has verified the first tokens; the head drafted the rest."""
        features = self._features(path)
        keys_values: list[tuple[Tensor, Tensor]] = []
        hidden = torch.empty(0)
        for position in range(1, len(path)):
            before = features[position - 1] if position <= num_verified else hidden
            hidden = self._row(path[position], before, position, keys_values)
        return self._output(hidden)

    def _features(self, path: Sequence[int]) -> Tensor:
        """What the head reads of the target at every position."""
        inputs: list[Tensor] = []
        blocks = [*self._target.model.layers, self._target.model.norm]
        hooks = [block.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0])) for block in blocks]
        self._target(torch.tensor([path]))
        for hook in hooks:
            hook.remove()
        if self._layout == "mtp":
            normed: Tensor = self._target.model.norm(inputs[-1])
            return normed
        fc = self._weights["fc.weight"]
        return torch.cat([inputs[layer] for layer in LAYERS], -1) @ fc.T

    def _row(self, token: int, before: Tensor, position: int, keys_values: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Hidden state of the next row; its key and value join those of the rows before it."""
        embedded = self._embedding[token]
        if self._layout == "mtp":
            both = torch.cat([self._norm(embedded, "enorm.weight"), self._norm(before, "hnorm.weight")])
            residual = self._layer("eh_proj.weight") @ both
            inputs = self._norm(residual, "input_layernorm.weight")
        else:
            normed = self._norm(before, "hidden_norm.weight")
            residual = normed if self._layout == "speculators" else before
            inputs = torch.cat([self._norm(embedded, "input_layernorm.weight"), normed])
        query, key, value = (self._layer(f"self_attn.{name}_proj.weight") @ inputs for name in "qkv")
        keys_values.append((_turned(key.view(NUM_KV_HEADS, SIZE), position), value.view(NUM_KV_HEADS, SIZE)))
        outputs = []
        for head, each in enumerate(_turned(query.view(NUM_HEADS, SIZE), position)):
            group = head // (NUM_HEADS // NUM_KV_HEADS)
            scores = torch.stack([each @ key[group] for key, _ in keys_values]) / math.sqrt(SIZE)
            outputs.append(scores.softmax(0) @ torch.stack([value[group] for _, value in keys_values]))
        residual = residual + self._layer("self_attn.o_proj.weight") @ torch.cat(outputs)
        normed = self._norm(residual, "post_attention_layernorm.weight")
        gated = torch.nn.functional.silu(self._layer("mlp.gate_proj.weight") @ normed)
        return residual + self._layer("mlp.down_proj.weight") @ (gated * (self._layer("mlp.up_proj.weight") @ normed))

    def _output(self, hidden: Tensor) -> Tensor:
        if self._layout == "mtp":
            logits: Tensor = self._target.lm_head.weight @ self._norm(hidden, "shared_head.norm.weight")
            return logits
        reduced = self._weights["lm_head.weight"] @ _rms_norm(hidden, self._weights["norm.weight"])
        logits = torch.full((VOCAB_SIZE,), -math.inf)
        logits[self._weights["t2d"]] = reduced  # ascending, as the tokens that it can propose
        return logits

    def _layer(self, name: str) -> Tensor:
        return self._weights[self._prefix + name]

    def _norm(self, values: Tensor, name: str) -> Tensor:
        return _rms_norm(values, self._layer(name))


def _rms_norm(values: Tensor, weight: Tensor) -> Tensor:
    return values / (values.square().mean() + EPS).sqrt() * weight


def _turned(heads: Tensor, position: int) -> Tensor:
    """Rotary embedding, as Llama has it: pairs are half a head apart."""
    half = SIZE // 2
    angles = position * THETA ** (-torch.arange(half) / half)
    first, second = heads[:, :half], heads[:, half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)
