"""Decoder of the Llama family on static buffers: every forward is the same few launches, captured as one CUDA graph.

R rows, filled up to a capture size; V vocabulary; H query heads, G key/value heads, D head dimension.
The same methods and logits as `CpuDecoder`. On a CPU the same steps run in plain torch, one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from swiftspec.devices.local import TREE_SLOTS
from swiftspec.engine.model.cuda_graph import GraphPool, Replay
from swiftspec.engine.model.gpu_kv_cache import GpuKVCache
from swiftspec.engine.model.gpu_layers import Groups, Layers, Step
from swiftspec.engine.model.gpu_ops import PRODUCTS, Ops, joined_ops, ops_for
from swiftspec.engine.model.gpu_weights import FORMATS, WeightFormat
from swiftspec.engine.model.input_batch import ancestor_words, capture_size_of, packed, unpacked
from swiftspec.engine.model.loader import load_model, local_spec
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.layers import halves, layer_groups
from swiftspec.models.spec import Inflation, ModelSpec

__all__ = ["GpuDecoder"]

_PREFILL_ROWS = 512
# torch prefers cuDNN on Hopper, which builds a plan for every new shape of a mask: 0.4 s for each new prompt length.
_PREFILL_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_NUM_CANDIDATES = 8  # the policies' default; another number is captured when first used


class _Answer(NamedTuple):
    """The last forward, or half of one: its kind and number of rows."""

    kind: str
    size: int
    step: Step


class _Halfway(NamedTuple):
    """An exit before its finish: its rows, and how many it ran with."""

    step: Step
    size: int
    num_rows: int


class GpuDecoder:
    """A loaded model. One instance serves any number of caches of its own, one forward at a time.

    The residual stream, norms and rotations are fp32; activations, products and the cache are in the format's dtype.
    Logits are valid until the next forward: on a GPU its graph overwrites them. The ranks of a TP group each hold a
    shard of `spec`, whose `weights` these are, and make the same calls. Only rank 0 reads the logits.
    """

    has_own_threads = False

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        weight_format: WeightFormat,
        device: torch.device | str,
        ops: Ops | None = None,
        tp_group: TPGroup | None = None,
    ) -> None:
        tp_group = tp_group or TPGroup()
        self.spec = spec
        self.device = torch.device(device)
        self.dtype = weight_format.dtype
        self._held = local_spec(spec, rank=tp_group.rank, size=tp_group.size)
        self._ops = joined_ops(
            ops or ops_for(self.device), tp_group, hidden=spec.hidden_size, dtype=self.dtype, device=self.device
        )
        # The kernels are for few rows; a prompt uses the products made for many.
        self._prefill_ops = dataclasses.replace(self._ops, **PRODUCTS)
        self._layers = Layers(spec, weights, weight_format=weight_format, device=self.device, tp_group=tp_group)
        one_by_one = [(index,) for index in range(spec.num_layers)]
        self._exact: Groups = one_by_one
        self._fuzzy: Groups = layer_groups(range(spec.num_layers))
        self._first_half, self._second_half = halves(one_by_one)
        self._pool = GraphPool(self.device)
        self._halfway: _Halfway | None = None
        self._answer: _Answer | None = None

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        weight_format: WeightFormat = FORMATS["float32"],
        device: torch.device | str = "cpu",
        inflation: Inflation | None = None,
        seed: int = 0,
        ops: Ops | None = None,
        tp_group: TPGroup | None = None,
    ) -> GpuDecoder:
        """Load a Hugging Face directory, expanded by `inflation` if there is one; `seed` fills the expansion.

        ValueError in one sentence if the directory cannot be used.
        """
        tp_group = tp_group or TPGroup()
        spec, weights = load_model(
            directory, rank=tp_group.rank, size=tp_group.size, inflation=inflation, seed=seed, device=device
        )
        return cls(spec, weights, weight_format=weight_format, device=device, ops=ops, tp_group=tp_group)

    def new_cache(self, capacity: int | None = None, *, tree_slots: int = TREE_SLOTS["cuda"]) -> GpuKVCache:
        """An empty cache; as long as the model's longest context unless `capacity` is given."""
        return GpuKVCache(
            self._held,
            capacity=capacity or self.spec.max_position,
            tree_slots=tree_slots,
            dtype=self.dtype,
            pool=self._pool,
            ops=self._ops,
        )

    def warm_up(self, row_counts: Iterable[int], cache: GpuKVCache) -> None:
        """Run every kind of forward in these rows' capture sizes, which captures it; `cache` stays empty."""
        for num_rows in sorted({capture_size_of(num_rows) for num_rows in row_counts}):
            if num_rows > min(cache.tree_slots, cache.capacity):
                break
            tokens, positions, ancestors = [0] * num_rows, range(num_rows), [0] * num_rows
            for fuzzy in (False, True):
                logits = self.forward(tokens, positions, ancestors, cache, fuzzy=fuzzy)
                self.candidates(logits, _NUM_CANDIDATES, cache)
                cache.reset()
            self.candidates(self.exit(tokens, positions, ancestors, cache), _NUM_CANDIDATES, cache)
            self.finish(cache)
            cache.reset()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        ancestors: Sequence[int],
        cache: GpuKVCache,
        *,
        fuzzy: bool = False,
    ) -> Tensor:
        """As `CpuDecoder.forward`, for at most 64 rows; logits [R, V] in fp32 on the device."""
        size = self._send(tokens, positions, ancestors, cache)
        step = self._replay("fuzzy" if fuzzy else "forward", size, cache)
        cache.extend_tree(len(tokens))
        return step.logits[: len(tokens)]

    @torch.inference_mode()
    def exit(
        self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: GpuKVCache
    ) -> Tensor:
        """Logits from the first half of the layers, as `forward` returns them. Only its `finish` may follow."""
        size = self._send(tokens, positions, ancestors, cache)
        step = self._replay("exit", size, cache)
        self._halfway = _Halfway(step, size, len(tokens))
        return step.logits[: len(tokens)]

    @torch.inference_mode()
    def finish(self, cache: GpuKVCache) -> Tensor:
        """The rest of the forward that `exit` began; the forward's logits."""
        assert self._halfway is not None, "finish is called after exit"
        _, size, num_rows = self._halfway
        step = self._replay("finish", size, cache)
        self._halfway = None
        cache.extend_tree(num_rows)
        return step.logits[:num_rows]

    @torch.inference_mode()
    def candidates(self, logits: Tensor, k: int, cache: GpuKVCache) -> tuple[list[list[int]], list[list[float]]]:
        """As `CpuDecoder.candidates`, for the last forward or half of one, whose logits these are; captured as well."""
        assert self._answer is not None, "candidates is called after a forward"
        kind, size, step = self._answer
        assert logits.data_ptr() == step.logits.data_ptr(), "these are the last forward's logits"
        k = min(k, self.spec.vocab_size)
        replay = cache.candidates.get((kind, size, k))
        if replay is None:
            replay = cache.candidates[kind, size, k] = Replay(partial(self._candidates, k), self._pool)
        return unpacked(replay()[:, : len(logits)])

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], cache: GpuKVCache) -> Tensor | None:
        """As `CpuDecoder.prefill`. Not captured: chunks of a prompt have any length and occur once."""
        if cache.tree_length:
            raise ValueError(f"cache holds a tree of {cache.tree_length} slots; expected none at prefill")
        cache.require_room(len(tokens))
        self._check_tokens(tokens)
        step = None
        for first in range(0, len(tokens), _PREFILL_ROWS):
            chunk = torch.tensor(tokens[first : first + _PREFILL_ROWS], device=self.device)
            step = self._begin_chunk(chunk, cache)
            self._layers.run(step, self._exact)
            cache.extend_prefix(len(chunk))
        if step is None:
            return None
        self._layers.read_out(step, slice(-1, None))
        return step.logits[0]

    def _send(
        self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int], cache: GpuKVCache
    ) -> int:
        """Send rows to the device; returns the number of rows that the forward is to run with."""
        if not len(tokens) == len(positions) == len(ancestors) > 0:
            raise ValueError(
                f"rows are {len(tokens)} tokens, {len(positions)} positions and {len(ancestors)} ancestors; "
                "expected one of each per row and at least one row"
            )
        if not 0 <= min(positions) <= max(positions) < cache.capacity:
            raise ValueError(f"positions are {list(positions)}; expected 0 to {cache.capacity - 1}")
        self._check_tokens(tokens)
        cache.require_tree_room(len(tokens))
        size = capture_size_of(len(tokens))
        words = ancestor_words(ancestors, cache.tree_length, cache.rows.num_words)
        lengths = {"prefix_length": cache.prefix_length, "tree_length": cache.tree_length}
        cache.rows.send(tokens, positions, words, **lengths)
        return size

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        """ValueError for a token outside the vocabulary; a GPU would not check it."""
        wrong = [token for token in tokens if not 0 <= token < self.spec.vocab_size]
        if wrong:
            raise ValueError(f"tokens contain {wrong[0]}; expected 0 to {self.spec.vocab_size - 1}")

    def _replay(self, kind: str, size: int, cache: GpuKVCache) -> Step:
        replay = cache.replays.get((kind, size))
        if replay is None:
            steps: dict[str, Callable[[], Step]] = {
                "forward": partial(self._from_rows, size, cache, self._exact),
                "fuzzy": partial(self._from_rows, size, cache, self._fuzzy),
                "exit": partial(self._from_rows, size, cache, self._first_half),
                "finish": self._from_halfway,
            }
            replay = cache.replays[kind, size] = Replay(steps[kind], self._pool)
        self._answer = _Answer(kind, size, replay())
        return self._answer.step

    def _candidates(self, k: int) -> Tensor:
        assert self._answer is not None, "logits follow a forward"
        return packed(*self._ops.top_candidates(self._answer.step.logits, k))

    def _from_rows(self, size: int, cache: GpuKVCache, groups: Groups) -> Step:
        """Embed the rows in `cache.rows`, run `groups` of the layers, and the head."""
        rows = cache.rows
        attend = partial(
            self._ops.tree_attention,
            ancestors_RW=rows.ancestors(size),
            lengths_2=rows.lengths_2,
            scale=self.spec.head_dim**-0.5,
            workspace=cache.workspace,
        )
        step = Step(
            ops=self._ops,
            positions=rows.positions(size),
            lengths=rows.lengths_2,
            data=cache.data,
            cos_sin=self._layers.cos_sin(cache.capacity),
            attend=attend,
            residual=self._layers.embed(rows.tokens(size)),
        )
        self._layers.run(step, groups)
        self._layers.read_out(step)
        return step

    def _from_halfway(self) -> Step:
        """The second half of an exit, whose residual is not modified: a captured function may run twice."""
        assert self._halfway is not None, "finish is called after exit"
        half = self._halfway.step
        step = dataclasses.replace(half, residual=half.residual.clone())
        self._layers.run(step, self._second_half)
        self._layers.read_out(step)
        return step

    def _begin_chunk(self, tokens: Tensor, cache: GpuKVCache) -> Step:
        """Rows after the prefix that see it and each other, causally."""
        first, num_rows = cache.prefix_length, len(tokens)
        visible = torch.ones(num_rows, first + num_rows, dtype=torch.bool, device=self.device).tril(first)
        return Step(
            ops=self._prefill_ops,
            positions=torch.arange(first, first + num_rows, dtype=torch.int32, device=self.device),
            lengths=torch.tensor([first, 0], dtype=torch.int32, device=self.device),
            data=cache.data,
            cos_sin=self._layers.cos_sin(cache.capacity),
            attend=partial(_causal_attention, visible_RN=visible),
            residual=self._layers.embed(tokens),
        )


def _causal_attention(q_RHD: Tensor, keys_GCD: Tensor, values_GCD: Tensor, *, visible_RN: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D), over the visible ones of the first N slots) v, [R, H, D].

    The J heads that share keys are stacked as rows, so that keys are never repeated.
    """
    num_rows, num_heads, size = q_RHD.shape
    num_groups, num_slots = keys_GCD.shape[0], visible_RN.shape[1]
    group_size = num_heads // num_groups
    stacked = q_RHD.transpose(0, 1).reshape(1, num_groups, group_size * num_rows, size)
    with sdpa_kernel(_PREFILL_ATTENTION) if q_RHD.is_cuda else nullcontext():
        mixed = F.scaled_dot_product_attention(
            stacked,
            keys_GCD[None, :, :num_slots],
            values_GCD[None, :, :num_slots],
            attn_mask=visible_RN.repeat(group_size, 1),
        )
    # On a GPU the result is laid out as [1, rows, groups, D].
    return mixed.reshape(num_heads, num_rows, size).transpose(0, 1)
