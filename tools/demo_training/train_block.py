"""Train a block drafter for the bundled target: `python -m tools.demo_training.train_block --work DIR`.

As DFlash (arXiv 2602.06036): hidden states of some of the target's layers are fused and become keys and values in every
layer of the draft; a block of the last verified token and masks reads them, and each other, and all masks propose their
tokens in one forward. A sequence is trained at many anchors at once. The loss is the cross-entropy under the target's
distribution; nearer masks weigh more, because a later one counts only if those before it were right. Seeded and
resumable, as `tools.demo_training.train`.
"""

import argparse
import json
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
from tools.demo_training.train_parallel import MASK_PIECE

TARGET_LAYERS = (1, 4, 6)  # whose outputs are read
NUM_LAYERS, INNER_SIZE = 2, 512
BLOCK_SIZE = 8  # the last verified token, and masks
STEPS = 1000
TOKENS_PER_STEP = 1536
SHORT_CONTEXT, LONG_CONTEXT = 192, 512  # tokens of a sequence: most steps, and the last ones
ANCHOR_EVERY = 8  # tokens of a sequence to one block
WEIGHT_DECAY = 4.0  # positions after which a mask's weight has fallen to 1/e
CONTINUATION_BATCHES = 6


class _Layer(nn.Module):
    """A decoder layer whose rows see all given keys and values but those that are hidden from them."""

    def __init__(self, hidden: int, heads: int, groups: int, eps: float) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, hidden // heads
        attention = {"q": hidden, "k": groups * self.size, "v": groups * self.size}
        self.self_attn = nn.ModuleDict(
            {f"{name}_proj": nn.Linear(hidden, n, bias=False) for name, n in attention.items()}
        )
        self.self_attn["o_proj"] = nn.Linear(hidden, hidden, bias=False)
        self.self_attn["q_norm"], self.self_attn["k_norm"] = nn.RMSNorm(self.size, eps), nn.RMSNorm(self.size, eps)
        self.mlp = nn.ModuleDict({name: nn.Linear(hidden, INNER_SIZE, bias=False) for name in ("gate_proj", "up_proj")})
        self.mlp["down_proj"] = nn.Linear(INNER_SIZE, hidden, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)

    def forward(self, rows: Tensor, context: Tensor, turns: tuple[Tensor, Tensor], hides: Tensor) -> Tensor:
        """Hidden states of block rows (batch, rows, hidden).

        turns: rotations of the context's positions, then of the rows'. hides: of each row, what it does not see.
        """
        attention, length = self.self_attn, context.shape[1]
        inputs = self.input_layernorm(rows)
        both = torch.cat([context, inputs], 1)

        def heads(values: Tensor, count: int) -> Tensor:
            divided: Tensor = values.unflatten(-1, (count, self.size))
            return divided

        query = attention["q_norm"](heads(attention["q_proj"](inputs), self.heads)).transpose(1, 2)
        key = attention["k_norm"](heads(attention["k_proj"](both), self.groups)).transpose(1, 2)
        value = heads(attention["v_proj"](both), self.groups).transpose(1, 2)
        query, _ = apply_rotary_pos_emb(query, query, turns[0][:, length:], turns[1][:, length:])
        _, key = apply_rotary_pos_emb(key, key, *turns)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=~hides, enable_gqa=True)
        rows = rows + attention["o_proj"](attended.transpose(1, 2).flatten(2))
        inner = self.post_attention_layernorm(rows)
        result: Tensor = rows + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](inner)) * self.mlp["up_proj"](inner))
        return result


class BlockDrafter(nn.Module):
    """A block drafter with the target's embedding and output matrix; parameters named as in DFlash's checkpoints."""

    def __init__(self, target: LlamaForCausalLM, *, mask_token: int) -> None:
        super().__init__()
        config = target.config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(TARGET_LAYERS) * hidden, hidden, bias=False)
        self.hidden_norm, self.norm = nn.RMSNorm(hidden, eps), nn.RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(
            _Layer(hidden, config.num_attention_heads, config.num_key_value_heads, eps) for _ in range(NUM_LAYERS)
        )
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.target = [target]  # in a list: no part of this module
        self.mask_token = mask_token
        self._rotary = LlamaRotaryEmbedding(config)

    def loss(self, tokens: Tensor) -> Tensor:
        """Weighted cross-entropy with the target's distribution at the masks; tokens (batch, context + 1)."""
        target, num_blocks = self.target[0], (tokens.shape[1] - 1) // ANCHOR_EVERY
        with torch.no_grad():
            told = target(input_ids=tokens[:, :-1], use_cache=False, output_hidden_states=True)
            features = torch.cat([told.hidden_states[layer + 1] for layer in TARGET_LAYERS], -1)
            wanted = told.logits.float().softmax(-1)
        context = self.hidden_norm(self.fc(features))
        anchors = torch.randperm(tokens.shape[1] - BLOCK_SIZE)[:num_blocks] + 1
        offsets = torch.arange(BLOCK_SIZE)
        positions = (anchors[:, None] + offsets).flatten()
        block = torch.where(offsets == 0, tokens[:, positions].unflatten(1, (num_blocks, BLOCK_SIZE)), self.mask_token)
        rows: Tensor = target.model.embed_tokens(block.flatten(1)).detach()
        places = torch.arange(context.shape[1])
        of_block = torch.arange(num_blocks).repeat_interleave(BLOCK_SIZE)
        # A block sees the tokens before its anchor, whose hidden states are known, and itself.
        hides = torch.cat(
            [places[None] >= anchors.repeat_interleave(BLOCK_SIZE)[:, None], of_block[None] != of_block[:, None]], 1
        )
        turns = self._rotary(rows, torch.cat([places, positions])[None])
        for layer in self.layers:
            rows = layer(rows, context, turns, hides)
        is_mask = offsets.repeat(num_blocks) > 0
        logits = F.linear(self.norm(rows[:, is_mask]), target.lm_head.weight)
        surprise = F.cross_entropy(
            logits.float().flatten(0, 1), wanted[:, positions[is_mask] - 1].flatten(0, 1), reduction="none"
        ).unflatten(0, (-1, BLOCK_SIZE - 1))
        weights = torch.exp(-torch.arange(BLOCK_SIZE - 1) / WEIGHT_DECAY)
        weighted: Tensor = (surprise * weights).sum(-1).mean()
        return weighted / weights.sum()


def save_drafter(drafter: BlockDrafter, directory: Path) -> None:
    """config.json and model.safetensors in bf16, in the layout of DFlash's checkpoints."""
    directory.mkdir(exist_ok=True)
    target = drafter.target[0].config
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "num_hidden_layers": NUM_LAYERS,
        "intermediate_size": INNER_SIZE,
        "num_target_layers": target.num_hidden_layers,
        "block_size": BLOCK_SIZE,
        "dflash_config": {"mask_token_id": drafter.mask_token, "target_layer_ids": list(TARGET_LAYERS)},
    }
    kept = (
        "vocab_size hidden_size num_attention_heads num_key_value_heads head_dim hidden_act rms_norm_eps "
        "max_position_embeddings rope_parameters attention_bias tie_word_embeddings bos_token_id eos_token_id"
    )
    config |= {name: getattr(target, name) for name in kept.split()}
    write_output(directory / "config.json", f"{json.dumps(config, indent=2, sort_keys=True)}\n".encode())
    weights = {name: value.detach().to(torch.bfloat16) for name, value in drafter.named_parameters()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint; the same one to resume")
    parser.add_argument("--dir", type=Path, default=BUNDLED, help="folder with target/, for block/")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.dir / "target" / "tokenizer.json"))
    target = LlamaForCausalLM.from_pretrained(args.dir / "target", dtype=torch.float32).eval().requires_grad_(False)
    stream = train.corpus_tokens(tokenizer, (text for _, text in training_sources()))
    path = args.work / "continuations.pt"
    written = train.continuations(target, stream, num_batches=CONTINUATION_BATCHES, path=path)
    torch.manual_seed(train.SEED)
    mask_token = tokenizer.token_to_id(MASK_PIECE)
    assert mask_token is not None  # the alphabet has all bytes
    drafter = BlockDrafter(target, mask_token=mask_token)

    def context(step: int) -> int:
        return LONG_CONTEXT if step >= (1 - train.LONG_FRACTION) * args.steps else SHORT_CONTEXT

    batch = train.mixed_batches(stream, written, context=context, tokens_per_step=TOKENS_PER_STEP)

    def seeded(step: int) -> Tensor:
        torch.manual_seed(train.SEED + step)  # of the anchors, so that resuming changes nothing
        return batch(step)

    def loss(drafter: BlockDrafter, tokens: Tensor) -> Tensor:
        with train.fast_arithmetic():
            return drafter.loss(tokens)

    train.fit(
        drafter,
        seeded,
        loss,
        title="block drafter",
        num_steps=args.steps,
        checkpoint=args.work / "block.pt",
    )
    save_drafter(drafter, args.dir / "block")


if __name__ == "__main__":
    main()
