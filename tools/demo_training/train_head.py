"""Train an EAGLE-3 head for the bundled target: `python -m tools.demo_training.train_head --work DIR`.

The head learns the target's distribution from the target's features. Then, as in EAGLE-3's training-time test, each
step of training is unrolled: from the second depth on, the head reads its own hidden states, as it does when it drafts.
Resumable: what is finished is skipped. `tools.demo_training.card` measures the result.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from swiftspec.files.writing import write_output
from tools.demo_training import BUNDLED, train
from tools.demo_training.corpus import training_sources

FEATURE_LAYERS = (2, 5, 7)  # a feature is the input of such a layer
INNER_SIZE = 512
DEPTHS = (1, 3)  # of the first steps, and of the others
STEPS = (320, 100)
DEPTH_WEIGHT = 0.8  # of each depth's loss, relative to the one before it
TOKENS_PER_STEP = 2048
CONTINUATION_BATCHES = 6


class _Attention(nn.Module):
    """Attention of a row to the rows before it, and to the rows that were drafted since the last verified one."""

    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, hidden // heads
        self.q_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.k_proj = nn.Linear(2 * hidden, groups * self.size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, groups * self.size, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, inputs: Tensor, turns: tuple[Tensor, Tensor], past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Outputs at depth `len(past)`; adds this depth's keys and values to `past`.

        Row i at depth d sees the rows up to i - d at depth 0, and row i - d + e at each depth e = 1 .. d.
        """

        def by_head(values: Tensor, heads: int) -> Tensor:
            divided: Tensor = values.unflatten(-1, (heads, self.size))
            return divided.transpose(1, 2)

        query, key = apply_rotary_pos_emb(
            by_head(self.q_proj(inputs), self.heads), by_head(self.k_proj(inputs), self.groups), *turns
        )
        shared = self.heads // self.groups
        value = by_head(self.v_proj(inputs), self.groups).repeat_interleave(shared, 1)
        past.append((key.repeat_interleave(shared, 1), value))
        depth, rows = len(past) - 1, inputs.shape[1]
        visible = torch.ones(rows, rows, dtype=torch.bool).tril(-depth)
        scores = (query @ past[0][0].transpose(-1, -2)).masked_fill(~visible, -1e9)
        drafted = [(_later(key, depth - d), _later(value, depth - d)) for d, (key, value) in enumerate(past) if d]
        own = [(query * key).sum(-1, keepdim=True) for key, _ in drafted]
        weights = (torch.cat([scores, *own], -1).float() * self.size**-0.5).softmax(-1).to(value.dtype)
        attended = weights[..., :rows] @ past[0][1]
        for index, (_, drafted_value) in enumerate(drafted):
            attended = attended + weights[..., rows + index, None] * drafted_value
        result: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return result


def _later(values: Tensor, count: int) -> Tensor:
    """Values (.., rows, size) moved to the row `count` later; zeros before."""
    moved: Tensor = F.pad(values, (0, 0, count, 0))
    return moved[..., : values.shape[-2], :]


class _Feed(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(inputs)) * self.up_proj(inputs))
        return result


class _Layer(nn.Module):
    def __init__(self, hidden: int, inner: int, heads: int, groups: int, eps: float) -> None:
        super().__init__()
        self.self_attn = _Attention(hidden, heads, groups)
        self.mlp = _Feed(hidden, inner)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)

    def forward(
        self, tokens: Tensor, hidden: Tensor, turns: tuple[Tensor, Tensor], past: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        inputs = torch.cat([self.input_layernorm(tokens), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(inputs, turns, past)
        result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class Head(nn.Module):
    """An EAGLE-3 head with the target's embedding and output matrix; parameters named as in EAGLE-3's checkpoints."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        super().__init__()
        config = target.config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(FEATURE_LAYERS) * hidden, hidden, bias=False)
        self.midlayer = _Layer(hidden, INNER_SIZE, config.num_attention_heads, config.num_key_value_heads, eps)
        self.norm = nn.RMSNorm(hidden, eps)
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.target = [target]  # in a list: no part of this module
        self._rotary = LlamaRotaryEmbedding(config)

    def loss(self, tokens: Tensor, *, depths: int) -> Tensor:
        """Cross-entropy with the target's distribution, weighted over the depths; tokens (batch, context + 1)."""
        target, tokens = self.target[0], tokens[:, :-1]
        with torch.no_grad():
            told = target(input_ids=tokens, use_cache=False, output_hidden_states=True)
            features = torch.cat([told.hidden_states[layer] for layer in FEATURE_LAYERS], -1)[:, :-1]
            wanted = told.logits[:, 1:].softmax(-1)
            embedded = target.model.embed_tokens(tokens[:, 1:])
            turns = self._rotary(embedded, torch.arange(1, tokens.shape[1])[None])
        hidden: Tensor = self.fc(features)
        past: list[tuple[Tensor, Tensor]] = []
        losses = []
        for depth in range(depths):
            hidden = self.midlayer(embedded, hidden, turns, past)
            logits = F.linear(self.norm(hidden[:, depth:]), target.lm_head.weight)
            losses.append(DEPTH_WEIGHT**depth * F.cross_entropy(logits.flatten(0, 1), wanted[:, depth:].flatten(0, 1)))
            hidden = _later(hidden, 1)
        return torch.stack(losses).sum() / sum(DEPTH_WEIGHT**depth for depth in range(depths))


def save_head(head: Head, directory: Path) -> None:
    """config.json and model.safetensors in bf16, in the layout of EAGLE-3's own checkpoints."""
    directory.mkdir(exist_ok=True)
    target = head.target[0].config
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "num_hidden_layers": 1,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(FEATURE_LAYERS), "use_aux_hidden_state": True},
        "draft_vocab_size": target.vocab_size,
        "intermediate_size": INNER_SIZE,
        "target_hidden_size": target.hidden_size,
    }
    kept = (
        "vocab_size hidden_size num_attention_heads num_key_value_heads head_dim hidden_act "
        "rms_norm_eps max_position_embeddings rope_parameters attention_bias tie_word_embeddings bos_token_id "
        "eos_token_id"
    )
    config |= {name: getattr(target, name) for name in kept.split()}
    write_output(directory / "config.json", f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())
    weights = {name: value.detach().to(torch.bfloat16) for name, value in head.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint; the same one to resume")
    parser.add_argument("--dir", type=Path, default=BUNDLED, help="folder with target/, for head/")
    parser.add_argument("--steps", type=int, nargs=len(STEPS), default=STEPS)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.dir / "target" / "tokenizer.json"))
    target = LlamaForCausalLM.from_pretrained(args.dir / "target", dtype=torch.float32).eval().requires_grad_(False)
    stream = train.corpus_tokens(tokenizer, (text for _, text in training_sources()))
    written = train.continuations(target, stream, num_batches=CONTINUATION_BATCHES, path=args.work / "continuations.pt")
    torch.manual_seed(train.SEED)
    head = Head(target)
    batch = train.mixed_batches(stream, written, context=lambda _: train.SHORT_CONTEXT, tokens_per_step=TOKENS_PER_STEP)
    for depths, num_steps in zip(DEPTHS, args.steps, strict=True):
        train.fit(
            head,
            batch,
            partial(Head.loss, depths=depths),
            title=f"head, unrolled {depths} times",
            num_steps=num_steps,
            checkpoint=args.work / f"head-{depths}.pt",
        )
    save_head(head, args.dir / "head")


if __name__ == "__main__":
    main()
