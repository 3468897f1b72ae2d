"""Operations of a forward's layers by kind, dense or sparse: each is another list of operations."""

from collections.abc import Iterable
from dataclasses import dataclass

from swiftspec.costmodel.forward_ops import ForwardOps, OpTime
from swiftspec.costmodel.kernel_latency import KernelTime
from swiftspec.models.layer_parts import (
    Attention,
    DenseNetwork,
    Experts,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.timing.latency import Provenance, weakest

EXPERTS = "experts"  # name of the routed experts' part of a forward

_FP32_BYTES = 4
# Rows of a sequence up to which its routing is taken as correlated: more are a prompt, on many subjects. A composed
# step counts all its rows as one sequence's, and what further ones add is a cost of sharing.
_MOST_CORRELATED = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOps(ForwardOps):
    """Dense layers, and those with experts, latent, linear or windowed attention.

    After attention and after the feed-forward network the hidden states are summed over the group, whether experts are
    divided by width or whole: their outputs are on all devices either way. Ranks of attention in data parallel gather
    the rows of all before the experts, and keep the sums of their own.
    """

    def layers(self) -> Iterable[OpTime]:
        """All layers, with the all-reduces between them."""
        shard = self.shard
        for attention, count in shard.attentions.items():
            yield from self._attention(attention, count)
        for network, count in shard.feed_forwards.items():
            yield "norm", self.norm(), count
            yield from self._network(network, count)
        yield from self.exchanges(shard.attentions.total() + shard.feed_forwards.total())

    def _attention(self, part: Attention, count: int) -> Iterable[OpTime]:
        if isinstance(part, GroupedAttention):
            if part.norms_heads_together:
                yield from self._head_norms(part, count)
            yield from self.grouped_attention(part, count)
        elif isinstance(part, LatentAttention):
            yield from self._latent_attention(part, count)
        else:
            yield from self._linear_attention(part, count)

    def _head_norms(self, part: GroupedAttention, count: int) -> Iterable[OpTime]:
        """Norms over all heads: each device adds its squares, all devices theirs, two numbers a row."""
        rows, values = self.rows, part.query_size + part.num_kv_heads * part.head_dim
        yield "norm", self.kernels.elementwise(num_bytes=rows * values * BF16_BYTES), count
        yield from self.all_reduces(count, num_bytes=2 * rows * _FP32_BYTES)
        yield "norm", self.kernels.elementwise(num_bytes=2 * rows * values * BF16_BYTES), count

    def _latent_attention(self, part: LatentAttention, count: int) -> Iterable[OpTime]:
        """Queries and keys through their low ranks; the keys' upward product is absorbed into queries and outputs."""
        hidden, rows, kernels = self.spec.hidden_size, self.rows, self.kernels
        cached = part.kv_rank + part.rotary_dim
        yield "norm", self.norm(), count
        first = part.query_rank or part.query_size
        yield "qkv", self.gemm(first + cached, hidden), count
        yield "norm", kernels.elementwise(num_bytes=2 * rows * (part.query_rank + cached) * BF16_BYTES), count
        if part.query_rank:
            yield "qkv", self.gemm(part.query_size, part.query_rank), count
        yield "absorbed", self._batched(part.num_heads * part.plain_dim, part.kv_rank), count
        rotated = part.num_heads * cached + cached
        yield "rope_kv", kernels.elementwise(num_bytes=2 * rows * rotated * BF16_BYTES), count
        context = self.context
        if part.indexer:
            if not part.indexer.is_shared:
                yield from self._indexing(part, count)
            context = min(context, part.indexer.num_tokens)
        attention = kernels.latent_attention(
            part, rows=rows, context=context, sequences=self.sequences, kv_dtype=self.kv_dtype
        )
        yield "attention", attention, count
        yield "absorbed", self._batched(part.num_heads * part.value_dim, part.kv_rank), count
        yield "o", self.gemm(hidden, part.num_heads * part.value_dim), count

    def _batched(self, n: int, k: int) -> KernelTime:
        """A product per head, in bf16: as much to read as one of this size, and as many operations."""
        return self.kernels.gemm(rows=self.rows, n=n, k=k, quant="bf16")

    def _indexing(self, part: LatentAttention, count: int) -> Iterable[OpTime]:
        """Products of the indexer, its scores of every token, and the selection; on each device alike."""
        indexer, kernels = part.indexer, self.kernels
        assert indexer is not None, "checked before"
        yield "indexer", self.gemm(indexer.num_heads * indexer.head_dim, part.query_rank), count
        yield "indexer", self.gemm(indexer.head_dim + indexer.num_heads, self.spec.hidden_size), count
        scoring = GroupedAttention(num_heads=indexer.num_heads, num_kv_heads=1, head_dim=indexer.head_dim)
        scores = kernels.attention(
            scoring, rows=self.rows, context=self.context, sequences=self.sequences, kv_dtype="fp8"
        )
        yield "indexer", scores, count
        yield "indexer", kernels.elementwise(num_bytes=2 * self.rows * self.context * 4), count

    def _linear_attention(self, part: LinearAttention, count: int) -> Iterable[OpTime]:
        hidden, rows = self.spec.hidden_size, self.rows
        decays = part.num_key_heads * part.key_dim if part.kind == "kda" else part.num_value_heads
        yield "norm", self.norm(), count
        yield "qkv", self.gemm(part.mixed_size + part.query_size + decays + part.num_value_heads, hidden), count
        yield "recurrence", self.kernels.linear_attention(part, rows=rows, sequences=self.sequences), count
        yield "gate", self.kernels.elementwise(num_bytes=3 * rows * part.query_size * BF16_BYTES), count
        yield "o", self.gemm(hidden, part.query_size), count

    def _network(self, part: FeedForward, count: int) -> Iterable[OpTime]:
        if isinstance(part, DenseNetwork):
            yield from self.network(count, part.size)
            return
        hidden, rows, kernels = self.spec.hidden_size, self.rows, self.kernels
        yield "router", kernels.gemm(rows=rows, n=part.num_experts, k=hidden, quant="bf16"), count
        yield "router", kernels.elementwise(num_bytes=2 * rows * part.num_experts * 4), count
        if part.latent_size:
            yield "latent", self.gemm(part.latent_size, hidden), count
            yield "latent", self.gemm(hidden, part.latent_size), count
        yield from self._dispatch(count)
        yield EXPERTS, self._experts(part), count
        if part.shared_size:
            yield from self.network(count, DenseNetwork(size=part.shared_size).divided(part.num_sharing).size)
        yield "sum", kernels.elementwise(num_bytes=3 * self.activation_bytes), count

    def _dispatch(self, count: int) -> Iterable[OpTime]:
        """Rows of all ranks to all of them, and the sums back.

        With 8 of its experts spread over 8 devices a row goes to nearly all of them, so that sending it to those alone
        saves little; engines gather by default (vLLM: all2all backend allgather_reducescatter). No table has a
        reduce-scatter: as many bytes are on the wire as in the gather.
        """
        ranks, rows, _ = self.group
        if ranks > 1:
            num_bytes = rows * self.spec.hidden_size * BF16_BYTES
            gather = self.kernels.all_gather(num_bytes=num_bytes, degree=ranks)
            yield "dispatch", gather, count
            yield "combine", KernelTime(gather.seconds, weakest((gather.provenance, Provenance.COMPOSED))), count

    def _experts(self, part: Experts) -> KernelTime:
        """Routed experts, fewer of which are read the more alike the routing of a sequence's rows is.

        Tables of whole experts are of the device with the most rows.
        """
        _, rows, sequences = self.group
        sequences = sequences if rows / sequences <= _MOST_CORRELATED else rows
        touched = self.routing.touched(
            rows, sequences=sequences, num_experts=part.num_experts, num_active=part.num_active
        )
        hidden, quant = self.spec.hidden_size, self.quant
        time = self.kernels.experts(part, rows=rows, touched=touched, hidden_size=hidden, quant=quant)
        if sequences == rows or self.routing.correlation == 1:
            return time
        return KernelTime(time.seconds, weakest((time.provenance, self.routing.provenance, Provenance.INTERPOLATED)))
