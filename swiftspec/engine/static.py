"""Decoder of the Llama family on static buffers: every forward is the same few launches, recorded as one CUDA graph.

R rows, filled up to a bucket; V vocabulary; H query heads, G key/value heads, D head dimension.
The same methods as `model.Decoder`, whose logits these are. On a CPU the same steps run in plain torch, one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftspec.engine.checkpoint import load_weights
from swiftspec.engine.inflate import inflate_weights
from swiftspec.engine.model import grouped
from swiftspec.engine.ops import REFERENCE, Ops, ops_for
from swiftspec.engine.reference_ops import swiglu
from swiftspec.engine.replay import GraphPool, Replay
from swiftspec.engine.rope import rotations
from swiftspec.engine.staging import ancestor_words, bucket_of
from swiftspec.engine.static_cache import StaticCache
from swiftspec.engine.weights import FORMATS, Projection, Weight, WeightFormat, build_layer
from swiftspec.specs import Inflation, ModelSpec

__all__ = ["StaticDecoder"]

_PREFILL_ROWS = 512
_TREE_SLOTS = 64

_Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # queries [R, H, D]; keys, values [G, C, D]


@dataclass(slots=True, kw_only=True)
class _Step:
    """A forward on its way through the layers."""

    ops: Ops
    positions: Tensor
    lengths: Tensor
    data: Tensor  # the cache's
    cos_sin: Tensor
    attend: _Attend
    residual: Tensor  # fp32
    update: Tensor | None = None  # to be added to the residual, which the next norm does
    logits: Tensor = field(init=False)


class StaticDecoder:
    """A loaded model. One instance serves any number of caches of its own, one forward at a time.

    The residual stream, norms and rotations are fp32; activations, products and the cache are in the format's dtype.
    Logits are valid until the next forward: on a GPU its graph overwrites them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        weight_format: WeightFormat,
        device: torch.device | str,
        ops: Ops | None = None,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.dtype = dtype = weight_format.dtype
        self._ops = ops or ops_for(self.device)
        # Kernels are for a few rows: a prompt is multiplied by what is made for many.
        self._prefill_ops = dataclasses.replace(
            self._ops,
            linear=REFERENCE.linear,
            gate_up=REFERENCE.gate_up,
            quantised_gemm=REFERENCE.quantised_gemm,
        )
        self._embedding = weights["model.embed_tokens.weight"].to(self.device, dtype)
        self._layers = [
            build_layer(weights, index, spec, weight_format=weight_format, device=self.device)
            for index in range(spec.num_layers)
        ]
        self._norm = weights["model.norm.weight"].to(self.device, dtype)
        tied = spec.tie_word_embeddings
        self._head = self._embedding if tied else weights["lm_head.weight"].to(self.device, dtype)
        self._one_by_one = [(index,) for index in range(spec.num_layers)]
        self._groups = grouped(range(spec.num_layers))
        self._half = spec.num_layers // 2
        self._cos_sin: dict[int, Tensor] = {}
        self._pool = GraphPool(self.device)
        self._halfway: _Step | None = None  # an exit's, until it is finished
        self._rows_halfway = 0

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        weight_format: WeightFormat = FORMATS["float32"],
        device: torch.device | str = "cpu",
        inflation: Inflation | None = None,
        seed: int = 0,
    ) -> StaticDecoder:
        """Load a Hugging Face directory, expanded by `inflation` if there is one; `seed` fills the expansion.

        ValueError in one sentence if the directory cannot be used.
        """
        spec = ModelSpec.from_directory(directory)
        weights = load_weights(directory, spec)
        if inflation is not None:
            weights = inflate_weights(weights, spec, inflation, generator=torch.Generator().manual_seed(seed))
            spec = inflation.inflated(spec)
        return cls(spec, weights, weight_format=weight_format, device=device)

    def new_cache(self, capacity: int | None = None, *, tree_slots: int = _TREE_SLOTS) -> StaticCache:
        """An empty cache; as long as the model's longest context unless `capacity` says otherwise."""
        return StaticCache(
            self.spec,
            capacity=capacity or self.spec.max_position,
            tree_slots=tree_slots,
            dtype=self.dtype,
            pool=self._pool,
            ops=self._ops,
        )

    def warm_up(self, row_counts: Iterable[int], cache: StaticCache) -> None:
        """Run every kind of forward in the buckets of these row counts, which records it; `cache` stays empty."""
        for num_rows in sorted({bucket_of(num_rows) for num_rows in row_counts}):
            if num_rows > min(cache.tree_slots, cache.capacity):
                break
            tokens, positions, ancestors = [0] * num_rows, range(num_rows), [0] * num_rows
            for fuzzy in (False, True):
                self.forward(tokens, positions, ancestors, cache, fuzzy=fuzzy)
                cache.reset()
            self.exit(tokens, positions, ancestors, cache)
            self.finish(cache)
            cache.reset()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        ancestors: Sequence[int],
        cache: StaticCache,
        *,
        fuzzy: bool = False,
    ) -> Tensor:
        """As `Decoder.forward`, for at most 64 rows; logits [R, V] in fp32 on the device."""
        bucket = self._send(tokens, positions, ancestors, cache)
        step = self._replay("fuzzy" if fuzzy else "forward", bucket, cache)
        cache.extend_tree(len(tokens))
        return step.logits[: len(tokens)]

    @torch.inference_mode()
    def exit(
        self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: StaticCache
    ) -> Tensor:
        """What the first half of the layers would answer to `forward`. Only its `finish` may follow."""
        bucket = self._send(tokens, positions, ancestors, cache)
        self._halfway = self._replay("exit", bucket, cache)
        self._rows_halfway = len(tokens)
        return self._halfway.logits[: len(tokens)]

    @torch.inference_mode()
    def finish(self, cache: StaticCache) -> Tensor:
        """The rest of the forward that `exit` began, with its answer."""
        assert self._halfway is not None, "an exit comes before"
        step = self._replay("finish", bucket_of(self._rows_halfway), cache)
        self._halfway = None
        cache.extend_tree(self._rows_halfway)
        return step.logits[: self._rows_halfway]

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], cache: StaticCache) -> Tensor | None:
        """As `Decoder.prefill`. Not recorded: chunks of a prompt come in any length, and once."""
        if cache.tree_length:
            raise ValueError(f"cache holds a tree of {cache.tree_length} slots; expected none at prefill")
        cache.require_room(len(tokens))
        step = None
        for first in range(0, len(tokens), _PREFILL_ROWS):
            chunk = torch.tensor(tokens[first : first + _PREFILL_ROWS], device=self.device)
            step = self._begin_chunk(chunk, cache)
            self._run(step, self._one_by_one)
            cache.extend_prefix(len(chunk))
        if step is None:
            return None
        self._read_out(step, slice(-1, None))
        return step.logits[0]

    def _send(
        self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: StaticCache
    ) -> int:
        """Rows to the device; the bucket that holds them."""
        if not len(tokens) == len(positions) == len(ancestors) > 0:
            raise ValueError(
                f"rows are {len(tokens)} tokens, {len(positions)} positions and {len(ancestors)} ancestors; "
                "expected one of each per row and at least one row"
            )
        if not 0 <= min(positions) <= max(positions) < cache.capacity:
            raise ValueError(f"positions are {list(positions)}; expected 0 to {cache.capacity - 1}")
        if not 0 <= min(tokens) <= max(tokens) < self.spec.vocab_size:
            raise ValueError(f"tokens are {list(tokens)}; expected 0 to {self.spec.vocab_size - 1}")
        cache.require_tree_room(len(tokens))
        bucket = bucket_of(len(tokens))
        words = ancestor_words(ancestors, cache.tree_length, cache.rows.num_words)
        lengths = {"prefix_length": cache.prefix_length, "tree_length": cache.tree_length}
        cache.rows.send(tokens, positions, words, **lengths)
        return bucket

    def _replay(self, kind: str, bucket: int, cache: StaticCache) -> _Step:
        replay = cache.replays.get((kind, bucket))
        if replay is None:
            steps: dict[str, Callable[[], _Step]] = {
                "forward": partial(self._from_rows, bucket, cache, self._one_by_one),
                "fuzzy": partial(self._from_rows, bucket, cache, self._groups),
                "exit": partial(self._from_rows, bucket, cache, self._one_by_one[: self._half]),
                "finish": self._from_halfway,
            }
            replay = cache.replays[kind, bucket] = Replay(steps[kind], self._pool)
        return replay()

    def _from_rows(self, bucket: int, cache: StaticCache, groups: Sequence[Sequence[int]]) -> _Step:
        """Through `groups` of the layers from what `cache.rows` says, and to the head."""
        rows = cache.rows
        attend = partial(
            self._ops.tree_attention,
            ancestors_RW=rows.ancestors(bucket),
            lengths_2=rows.lengths_2,
            scale=self.spec.head_dim**-0.5,
        )
        step = _Step(
            ops=self._ops,
            positions=rows.positions(bucket),
            lengths=rows.lengths_2,
            data=cache.data,
            cos_sin=self._cos_sin_of(cache.capacity),
            attend=attend,
            residual=self._embedding.index_select(0, rows.tokens(bucket)).float(),
        )
        self._run(step, groups)
        self._read_out(step)
        return step

    def _from_halfway(self) -> _Step:
        """The other layers of an exit, whose residual stays as it is: what is recorded may run twice."""
        assert self._halfway is not None, "an exit comes before"
        step = dataclasses.replace(self._halfway, residual=self._halfway.residual.clone())
        self._run(step, self._one_by_one[self._half :])
        self._read_out(step)
        return step

    def _begin_chunk(self, tokens: Tensor, cache: StaticCache) -> _Step:
        """Rows behind the prefix that see it and each other, causally."""
        first, num_rows = cache.prefix_length, len(tokens)
        visible = torch.ones(num_rows, first + num_rows, dtype=torch.bool, device=self.device).tril(first)
        return _Step(
            ops=self._prefill_ops,
            positions=torch.arange(first, first + num_rows, dtype=torch.int32, device=self.device),
            lengths=torch.tensor([first, 0], dtype=torch.int32, device=self.device),
            data=cache.data,
            cos_sin=self._cos_sin_of(cache.capacity),
            attend=partial(_causal_attention, visible_RN=visible),
            residual=self._embedding.index_select(0, tokens).float(),
        )

    def _run(self, step: _Step, groups: Sequence[Sequence[int]]) -> None:
        """Through groups of layers; those of a group share their attention's input (EasySpec), of one: exact."""
        ops, eps = step.ops, self.spec.rms_norm_eps
        for group in groups:
            attended = [self._attend(step, index) for index in group]
            for index, output in zip(group, attended, strict=True):
                layer = self._layers[index]
                update = output if step.update is None else output + step.update
                hidden = ops.rms_norm(step.residual, update, layer.mlp_norm, eps=eps)
                step.update = _project(ops, _feed(ops, hidden, layer.gate_up), layer.down)

    def _attend(self, step: _Step, index: int) -> Tensor:
        layer, ops, eps = self._layers[index], step.ops, self.spec.rms_norm_eps
        hidden = ops.rms_norm(step.residual, step.update, layer.attention_norm, eps=eps)
        step.update = None
        keys, values = step.data[index]
        queries = ops.rope_kv_write(
            _project(ops, hidden, layer.qkv),
            step.cos_sin,
            step.positions,
            step.lengths,
            keys,
            values,
            num_heads=self.spec.num_heads,
            q_norm_D=layer.q_norm,
            k_norm_D=layer.k_norm,
            eps=eps,
        )
        return _project(ops, step.attend(queries, keys, values).flatten(1), layer.output)

    def _read_out(self, step: _Step, rows: slice = slice(None)) -> None:
        update = None if step.update is None else step.update[rows]
        hidden = step.ops.rms_norm(step.residual[rows], update, self._norm, eps=self.spec.rms_norm_eps)
        step.update = None
        step.logits = step.ops.linear(hidden, self._head).float()

    def _cos_sin_of(self, capacity: int) -> Tensor:
        """fp32 [capacity, D]: cosines, then sines. A table per capacity: recorded graphs know its address."""
        if capacity not in self._cos_sin:
            turns = rotations(self.spec, capacity).squeeze(1)
            self._cos_sin[capacity] = torch.cat([turns.real, turns.imag], -1).to(self.device)
        return self._cos_sin[capacity]


def _project(ops: Ops, x: Tensor, projection: Projection) -> Tensor:
    weight = projection.weight
    y = ops.linear(x, weight) if isinstance(weight, Tensor) else ops.quantised_gemm(x, weight)
    return y if projection.bias is None else y.add_(projection.bias)


def _feed(ops: Ops, x: Tensor, weight: Weight) -> Tensor:
    return ops.gate_up(x, weight) if isinstance(weight, Tensor) else swiglu(ops.quantised_gemm(x, weight))


def _causal_attention(q_RHD: Tensor, keys_GCD: Tensor, values_GCD: Tensor, *, visible_RN: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D), over the visible of the first N slots) v, [R, H, D].

    The J heads that share keys are stacked as rows, so that keys are never repeated.
    """
    num_rows, num_heads, size = q_RHD.shape
    num_groups, num_slots = keys_GCD.shape[0], visible_RN.shape[1]
    group_size = num_heads // num_groups
    stacked = q_RHD.transpose(0, 1).reshape(1, num_groups, group_size * num_rows, size)
    mixed = F.scaled_dot_product_attention(
        stacked,
        keys_GCD[None, :, :num_slots],
        values_GCD[None, :, :num_slots],
        attn_mask=visible_RN.repeat(group_size, 1),
    )
    return mixed.view(num_heads, num_rows, size).transpose(0, 1)
