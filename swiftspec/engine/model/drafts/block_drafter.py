"""A block drafter: its forward with torch, and `Model` of a draft that answers at masks, all at once.

What it knows of verified tokens is made of the target's features, when they are first needed; tokens themselves are
only counted. A forward has the tokens verified last, then masks: the answer after the last token and those after the
masks are the block's. In the block itself, as in DFlash's checkpoints, a mask answers for its own place, and sees those
after it; so a whole block is computed however few rows there are. Rows beyond the block are answered as its last one.

R rows of a block, N tokens of context, F features, h hidden size, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.layers import Linear, build_head, build_layer
from swiftspec.engine.model.cpu.with_torch import DecoderLayers
from swiftspec.engine.model.drafts.features import Features
from swiftspec.engine.model.drafts.head_weights import read_tensors
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Model, Rows, as_candidates
from swiftspec.engine.model.kv_cache import KVCache, cache_of
from swiftspec.engine.model.rope import interleaved
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.engine.model.weights.checkpoint import layer_shapes
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.models.head_spec import BlockSpec
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind, Row

_NORM, _FUSED_NORM = "model.norm.weight", "hidden_norm.weight"


def load_block_weights(spec: BlockSpec, target: ModelSpec, target_directory: Path) -> dict[str, Tensor]:
    """All weights of a block drafter; embedding and output matrix may be the target's. ValueError names a wrong one."""
    hidden, vocab = spec.layers.hidden_size, spec.layers.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(spec.feature_layers) * target.hidden_size),
        _FUSED_NORM: (hidden,),
        _NORM: (hidden,),
    }
    for layer in range(spec.layers.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(spec.layers).items()}
    shared = {EMBEDDING: (vocab, hidden), HEAD: (vocab, hidden)}
    weights = read_tensors(spec.directory, _name, shapes | shared)
    if missing := sorted(shapes.keys() - weights.keys()):
        raise ValueError(f"{spec.directory}: tensor {missing[0]} of the drafter is missing from the checkpoint")
    theirs = read_tensors(target_directory, lambda name: name if name in shared else None, shared)
    theirs.setdefault(HEAD, theirs[EMBEDDING])
    return theirs | weights


def _name(name: str) -> str:
    name = name.removeprefix("model.")
    return f"model.{name}" if name.startswith(("layers.", "norm.", "embed_tokens.")) else name


class BlockLayers(DecoderLayers):
    """The layers of a block drafter, with what comes before and after them. weights: from `load_block_weights`."""

    def __init__(self, spec: BlockSpec, weights: Mapping[str, Tensor], *, dtype: torch.dtype) -> None:
        super().__init__(spec.layers, dtype=dtype)
        self.spec, shape = spec, spec.layers
        self._embedding = weights[EMBEDDING].to(dtype)
        self._fusion = Linear(weights["fc.weight"].float(), None, dtype=dtype)
        self._layers = [build_layer(weights, index, shape, dtype=dtype) for index in range(shape.num_layers)]
        self._context = Linear(_context_weight(weights, shape), None, dtype=dtype)
        self._head = build_head(weights, shape, dtype=dtype)

    def read(self, features: Tensor, cache: KVCache, *, first: int) -> None:
        """Write the keys and values of verified tokens, from their features [N, F], into slots from `first` on."""
        shape, count = self._shape, len(features)
        fused = self._unit(self._fusion(features.to(self._dtype)).float())
        both = self._context(fused.to(self._dtype)).float()
        both = both.view(count, shape.num_layers, 2, shape.num_kv_heads, shape.head_dim)
        turns = self._turns(range(first, first + count))
        for index, layer in enumerate(self._layers):
            weights = None if layer.qk_norm is None else layer.qk_norm[shape.num_heads :]
            keys = both[:, index, 0]
            self._norm_heads(keys, weights)
            torch.view_as_complex(keys.unflatten(-1, (shape.head_dim // 2, 2))).mul_(turns)
        cache.data[:, :, :, first : first + count].copy_(both.permute(1, 2, 3, 0, 4))

    def forward(self, tokens: Sequence[int], cache: KVCache, *, first: int) -> Tensor:
        """Logits [R, V] at the tokens of a block at positions from `first` on, each of which sees the whole block.

        The cache's slots before `first` are the context; those from there on are overwritten.
        """
        hidden = self._embedding.index_select(0, torch.tensor(tokens)).float()
        end, turns = first + len(tokens), self._turns(range(first, first + len(tokens)))
        work = self._workspace(len(tokens))
        for layer, data in zip(self._layers, cache.data, strict=True):
            self._project(layer, self._unit(hidden), turns)
            work.attention.queries_GRJD.copy_(work.queries_GRJD)
            data[:, :, first:end].copy_(work.keys_values)
            keys, values = data[:, None, :, :end].unbind(0)
            hidden = hidden + layer.output(work.attention(keys, values)).float()
            hidden = hidden + layer.feed(self._unit(hidden).to(self._dtype)).float()
        return self._head(self._unit(hidden).to(self._dtype)).float()


def _context_weight(weights: Mapping[str, Tensor], shape: ModelSpec) -> Tensor:
    """Keys and values of all layers from fused features of length one, [2 * kv * layers, h]."""
    norm = weights[_FUSED_NORM].float() * math.sqrt(shape.hidden_size)
    parts = []
    for index in range(shape.num_layers):
        prefix = f"model.layers.{index}.self_attn."
        parts += [
            interleaved(weights[f"{prefix}k_proj.weight"].float(), shape.head_dim),
            weights[f"{prefix}v_proj.weight"].float(),
        ]
    return torch.cat(parts) * norm


@dataclass(slots=True)
class _Sequence:
    """A sequence: keys and values of the tokens read so far, with counts of all tokens, and the target's cache."""

    own: KVCache
    target: Features
    num_read: int = 0


class _Block(NamedTuple):
    """The last verified token of a forward's rows, its position, and how many rows come before and after it."""

    token: int
    position: int
    num_before: int
    num_masks: int


class BlockRunner(Model):
    """A block drafter beside its target. target: the target's cache of each sequence, with features."""

    has_own_threads = False
    tenant_bytes: tuple[int, ...] = ()

    def __init__(self, layers: BlockLayers, target: Sequence[Features], *, capacity: int, dtype: torch.dtype) -> None:
        self._layers = layers
        self._mask_token, self._block_size = layers.spec.mask_token, layers.spec.block_size
        self.vocab_size = layers.spec.layers.vocab_size
        self._sequences = [
            _Sequence(KVCache(layers.spec.layers, capacity=capacity + self._block_size, dtype=dtype), cache)
            for cache in target
        ]

    def warm_up(self, max_rows: int) -> None:
        for num_rows in range(1, max_rows + 1):
            rows = tuple(Row(self._mask_token if slot else 0, slot, (1 << slot) - 1) for slot in range(num_rows))
            self.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, rows),)))
            self.reset(0)

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute a batch, a sequence after the other. Rows of verified tokens but the last one answer as the last."""
        logits = tuple(self._logits(entry) for entry in batch.entries)
        if not batch.top_k:
            return BatchResult(logits)
        return BatchResult(logits, tuple(as_candidates(*top_candidates(each, batch.top_k)) for each in logits))

    def check(self, batch: ForwardBatch) -> None:
        for entry in batch.entries:
            held = cache_of(entry.sequence, self._sequences)
            if isinstance(entry, Rows):
                self._block(entry, held)

    def keep(self, sequence: int, slots: Sequence[int], num_verified: int) -> None:
        own = cache_of(sequence, self._sequences).own
        own.prefix_length += num_verified
        own.tree_length = len(slots) - num_verified

    def reset(self, sequence: int, _tenant: int = 0, /) -> None:
        """Forget every token of a sequence; all tenants of a target share the drafter."""
        held = cache_of(sequence, self._sequences)
        held.own.reset()
        held.num_read = 0

    def _logits(self, entry: Entry) -> Tensor:
        held = cache_of(entry.sequence, self._sequences)
        if isinstance(entry, Chunk):
            held.own.extend_prefix(len(entry.tokens))
            return torch.zeros(entry.num_logits, self.vocab_size)
        block = self._block(entry, held)
        self._read(held, block.position)
        tokens = [block.token, *[self._mask_token] * (self._block_size - 1)]
        held.own.extend_tree(len(entry.rows))
        answers = self._layers.forward(tokens, held.own, first=block.position)[1:]
        last = len(answers) - 1
        return answers[[0] * block.num_before + [min(number, last) for number in range(block.num_masks + 1)]]

    def _block(self, entry: Rows, held: _Sequence) -> _Block:
        """The block of some rows. ValueError unless each of them sees all before it.

        Masks are those at the end. A text that itself ends with the mask costs a guess, no more.
        """
        first = held.own.length
        last = max((i for i, row in enumerate(entry.rows) if row.token != self._mask_token), default=0)
        is_chain = all(
            row.position == first + index and row.ancestors == (1 << held.own.tree_length + index) - 1
            for index, row in enumerate(entry.rows)
        )
        if not is_chain:
            raise ValueError(
                f"sequence {entry.sequence}: rows are no chain of tokens and then masks, which is all that a block "
                "drafter computes"
            )
        return _Block(entry.rows[last].token, first + last, last, len(entry.rows) - 1 - last)

    def _read(self, held: _Sequence, num_tokens: int) -> None:
        """Make the keys and values of the first tokens. ValueError if the target has not verified them all."""
        if held.target.prefix_length < num_tokens:
            raise ValueError(
                f"the last token of the text is at position {num_tokens}, but the target has verified only "
                f"{held.target.prefix_length} tokens"
            )
        if held.num_read < num_tokens:
            self._layers.read(held.target.features[held.num_read : num_tokens], held.own, first=held.num_read)
            held.num_read = num_tokens
