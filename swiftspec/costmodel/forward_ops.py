"""Operations of a forward on a group of devices, with the number of times that each is run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from swiftspec.costmodel.kernel_latency import NCCL, Kernels, KernelTime
from swiftspec.costmodel.routing import Routing
from swiftspec.errors import FieldError
from swiftspec.models.heads import Product
from swiftspec.models.layer_parts import (
    Attention,
    DenseNetwork,
    Experts,
    FeedForward,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from swiftspec.models.names import unknown
from swiftspec.models.quantisation import BF16_BYTES, QUANTISATIONS
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec, dense_format
from swiftspec.timing.latency import Provenance, weakest

FUSED = "fused"  # residual and norm in the same kernel
EXPERTS = "experts"  # name of the routed experts' part of a forward
OpTime = tuple[str, KernelTime, float]  # name, time of one, count

_FP32_BYTES = 4
# Rows of a sequence up to which its routing is taken as correlated: more are a prompt, on many subjects. A composed
# step counts all its rows as one sequence's, and what further ones add is a cost of sharing.
_MOST_CORRELATED = 512


class Group(NamedTuple):
    """All ranks of attention in data parallel together: their number, and the rows and sequences of all."""

    ranks: int
    rows: int
    sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOps:
    """Operations of one forward, with their counts.

    After attention and after the feed-forward network the hidden states are summed over the group, whether experts are
    divided by width or whole: their outputs are on all devices either way. Ranks of attention in data parallel gather
    the rows of all before the experts, and keep the sums of their own.

    degree: devices of a rank. rows, sequences: of the fullest rank.
    """

    spec: ModelSpec
    kernels: Kernels
    quant: str
    degree: int
    rows: int
    context: int
    sequences: int
    collective: str | None
    kv_dtype: str
    routing: Routing
    group: Group

    def __post_init__(self) -> None:
        if self.quant not in QUANTISATIONS:
            raise unknown("quant", self.quant, QUANTISATIONS)
        device, needed = self.kernels.device, QUANTISATIONS[self.quant].peak
        if needed and needed not in device.peak_flops:
            raise FieldError("quant", self.quant, f"{device.name} has no {needed} units, which it needs")
        if not 1 <= self.sequences <= self.rows:
            raise ValueError(f"sequences is {self.sequences}; expected 1 to {self.rows}, the number of rows")

    @property
    def _shard(self) -> ModelSpec:
        return sharded(self.spec, self.degree * self.group.ranks)

    @property
    def _activation_bytes(self) -> int:
        return self.rows * self.spec.hidden_size * BF16_BYTES

    def layers(self) -> Iterable[OpTime]:
        """All layers, with the all-reduces between them."""
        shard = self._shard
        for attention, count in shard.attentions.items():
            yield from self._attention(attention, count)
        for network, count in shard.feed_forwards.items():
            yield "norm", self._norm(), count
            yield from self._feed_forward(network, count)
        yield from self._exchanges(shard.attentions.total() + shard.feed_forwards.total())

    def _attention(self, part: Attention, count: int) -> Iterable[OpTime]:
        if isinstance(part, GroupedAttention):
            if part.norms_heads_together:
                yield from self._head_norms(part, count)
            yield from self._grouped_attention(part, count)
        elif isinstance(part, LatentAttention):
            yield from self._latent_attention(part, count)
        else:
            yield from self._linear_attention(part, count)

    def _grouped_attention(self, part: GroupedAttention, count: float) -> Iterable[OpTime]:
        """Attention with its projections and the norm before it, without the all-reduce after it."""
        spec, kernels, rows = self.spec, self.kernels, self.rows
        width, kv_width = part.query_size, part.kv_values
        products = (1 + part.is_gated) * width + kv_width // (1 + part.takes_keys)
        yield "norm", self._norm(), count
        yield "qkv", self._gemm(products, spec.hidden_size), count
        yield "rope_kv", kernels.elementwise(num_bytes=2 * rows * (width + kv_width) * BF16_BYTES), count
        context = min(self.context, part.window) if part.window else self.context
        attention = kernels.attention(
            part, rows=rows, context=context, sequences=self.sequences, kv_dtype=self.kv_dtype
        )
        yield "attention", attention, count
        if part.is_gated:
            yield "gate", kernels.elementwise(num_bytes=3 * rows * width * BF16_BYTES), count
        yield "o", self._gemm(spec.hidden_size, width), count

    def _head_norms(self, part: GroupedAttention, count: int) -> Iterable[OpTime]:
        """Norms over all heads: each device adds its squares, all devices theirs, two numbers a row."""
        rows, values = self.rows, part.query_size + part.num_kv_heads * part.head_dim
        yield "norm", self.kernels.elementwise(num_bytes=rows * values * BF16_BYTES), count
        yield from self._all_reduces(count, num_bytes=2 * rows * _FP32_BYTES)
        yield "norm", self.kernels.elementwise(num_bytes=2 * rows * values * BF16_BYTES), count

    def _latent_attention(self, part: LatentAttention, count: int) -> Iterable[OpTime]:
        """Queries and keys through their low ranks; the keys' upward product is absorbed into queries and outputs."""
        hidden, rows, kernels = self.spec.hidden_size, self.rows, self.kernels
        cached = part.kv_rank + part.rotary_dim
        yield "norm", self._norm(), count
        first = part.query_rank or part.query_size
        yield "qkv", self._gemm(first + cached, hidden), count
        yield "norm", kernels.elementwise(num_bytes=2 * rows * (part.query_rank + cached) * BF16_BYTES), count
        if part.query_rank:
            yield "qkv", self._gemm(part.query_size, part.query_rank), count
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
        yield "o", self._gemm(hidden, part.num_heads * part.value_dim), count

    def _batched(self, n: int, k: int) -> KernelTime:
        """A product per head, in bf16: as much to read as one of this size, and as many operations."""
        return self.kernels.gemm(rows=self.rows, n=n, k=k, quant="bf16")

    def _indexing(self, part: LatentAttention, count: int) -> Iterable[OpTime]:
        """Products of the indexer, its scores of every token, and the selection; on each device alike."""
        indexer, kernels = part.indexer, self.kernels
        assert indexer is not None, "checked before"
        yield "indexer", self._gemm(indexer.num_heads * indexer.head_dim, part.query_rank), count
        yield "indexer", self._gemm(indexer.head_dim + indexer.num_heads, self.spec.hidden_size), count
        scoring = GroupedAttention(num_heads=indexer.num_heads, num_kv_heads=1, head_dim=indexer.head_dim)
        scores = kernels.attention(
            scoring, rows=self.rows, context=self.context, sequences=self.sequences, kv_dtype="fp8"
        )
        yield "indexer", scores, count
        yield "indexer", kernels.elementwise(num_bytes=2 * self.rows * self.context * 4), count

    def _linear_attention(self, part: LinearAttention, count: int) -> Iterable[OpTime]:
        hidden, rows = self.spec.hidden_size, self.rows
        decays = part.num_key_heads * part.key_dim if part.kind == "kda" else part.num_value_heads
        yield "norm", self._norm(), count
        yield "qkv", self._gemm(part.mixed_size + part.query_size + decays + part.num_value_heads, hidden), count
        yield "recurrence", self.kernels.linear_attention(part, rows=rows, sequences=self.sequences), count
        yield "gate", self.kernels.elementwise(num_bytes=3 * rows * part.query_size * BF16_BYTES), count
        yield "o", self._gemm(hidden, part.query_size), count

    def _feed_forward(self, part: FeedForward, count: int) -> Iterable[OpTime]:
        if isinstance(part, DenseNetwork):
            yield from self._network(count, part.size)
            return
        hidden, rows, kernels = self.spec.hidden_size, self.rows, self.kernels
        yield "router", kernels.gemm(rows=rows, n=part.num_experts, k=hidden, quant="bf16"), count
        yield "router", kernels.elementwise(num_bytes=2 * rows * part.num_experts * 4), count
        if part.latent_size:
            yield "latent", self._gemm(part.latent_size, hidden), count
            yield "latent", self._gemm(hidden, part.latent_size), count
        yield from self._dispatch(count)
        yield EXPERTS, self._experts(part), count
        if part.shared_size:
            yield from self._network(count, DenseNetwork(size=part.shared_size).divided(part.num_sharing).size)
        yield "sum", kernels.elementwise(num_bytes=3 * self._activation_bytes), count

    def _network(self, count: float, size: int) -> Iterable[OpTime]:
        """Gated products of this width."""
        yield "gate_up", self._gemm(2 * size, self.spec.hidden_size), count
        yield "activation", self.kernels.elementwise(num_bytes=3 * self.rows * size * BF16_BYTES), count
        yield "down", self._gemm(self.spec.hidden_size, size), count

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

    def _exchanges(self, count: float) -> Iterable[OpTime]:
        """All-reduces of the hidden states."""
        return self._all_reduces(count, num_bytes=self._activation_bytes)

    def _all_reduces(self, count: float, *, num_bytes: int) -> Iterable[OpTime]:
        """All-reduces of so many bytes; none on a single device."""
        if self.degree > 1:
            times = all_reduce_times(self.kernels, num_bytes=num_bytes, degree=self.degree)
            name = self.collective or fastest(times)
            if name not in times:
                raise unknown("collective", name, times)
            yield "all_reduce", times[name], count

    def products(self, products: Iterable[Product]) -> Iterable[OpTime]:
        """Products beside those of the layers, their columns divided over the group."""
        for product in products:
            rows, count = (1, self.rows) if product.is_serial else (self.rows, 1)
            columns = -(-product.num_outputs // self.degree)
            yield product.name, self._gemm(columns, product.num_inputs, rows=rows), count

    def ends(self, answers: int) -> Iterable[OpTime]:
        """Embedding, last norm, and the LM head for `answers` rows, its columns divided over the group."""
        spec, kernels = self.spec, self.kernels
        yield from self._exchanges(1)  # the embedding's rows are divided over the group
        yield "embedding", kernels.elementwise(num_bytes=2 * self._activation_bytes), 1
        yield "norm", self._norm(), 1
        head = kernels.gemm(rows=answers, n=self._shard.vocab_size, k=spec.hidden_size, quant="bf16")
        yield "lm_head", head, 1
        if self.degree > 1:
            num_bytes = answers * self._shard.vocab_size * self.degree * BF16_BYTES
            yield "gather", kernels.all_gather(num_bytes=num_bytes, degree=self.degree), 1

    def _gemm(self, n: int, k: int, *, rows: int | None = None) -> KernelTime:
        """A product of all rows, or of so many, with weights in the format of the layers' matrices."""
        return self.kernels.gemm(rows=rows or self.rows, n=n, k=k, quant=dense_format(self.quant, self.spec))

    def _norm(self) -> KernelTime:
        """A norm that reads the hidden states and the residual, and writes both."""
        return self.kernels.elementwise(num_bytes=4 * self._activation_bytes)


def all_reduce_times(kernels: Kernels, *, num_bytes: int, degree: int) -> dict[str, KernelTime]:
    """Time of one all-reduce by every known implementation, and by the fused one.

    The fused one is assumed to be the fastest one-step exchange, less the start of the norm that it absorbs.
    """
    times = {
        name: kernels.all_reduce(num_bytes=num_bytes, degree=degree, implementation=name)
        for name in kernels.collectives(degree)
    }
    one_shot = [time.seconds for name, time in times.items() if name != NCCL]
    if one_shot:
        saved_s = kernels.elementwise(num_bytes=0).seconds
        times[FUSED] = KernelTime(max(0.0, min(one_shot) - saved_s), Provenance.ASSUMED)
    return times


def fastest(times: dict[str, KernelTime]) -> str:
    """The fastest implementation that is known, not estimated."""
    return min((name for name in times if name != FUSED), key=lambda name: times[name].seconds)
