"""A forward of a model on a group of devices, composed of its operations, layer by layer."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log2

from swiftspec.artifacts.latency import Part, Provenance
from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.kernel_latency import NCCL, Kernels, KernelTime
from swiftspec.models import QUANTISATIONS, sharded
from swiftspec.models.heads import Product
from swiftspec.models.layers import layer_groups
from swiftspec.models.names import unknown
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.spec import ModelSpec

__all__ = ["FUSED", "Host", "all_reduce_times", "fastest", "forward_parts", "fuzzy_parts"]

FUSED = "fused"  # residual and norm in the same kernel
_Timed = tuple[str, KernelTime, float]  # name, time of one, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Time that an engine adds to a forward's kernels: scheduling, launch, sampling; and keeping a group in step.

    The latter per doubling of the group, which waits for its slowest device.
    """

    step_s: float
    group_s: float

    @classmethod
    def of(cls, engine: str) -> "Host":
        """Fitted host time of a serving engine, vllm or trtllm; for any other engine, the smaller of these two."""
        step_s = CONSTANTS.get(f"host_{engine}_s", CONSTANTS["host_trtllm_s"])
        return cls(step_s=step_s, group_s=CONSTANTS["host_group_s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """The operations of one forward, with their counts."""

    spec: ModelSpec
    kernels: Kernels
    quant: str
    degree: int
    rows: int
    context: int
    sequences: int
    collective: str | None
    kv_dtype: str

    def __post_init__(self) -> None:
        if self.quant not in QUANTISATIONS:
            raise unknown("quant", self.quant, QUANTISATIONS)
        if not 1 <= self.sequences <= self.rows:
            raise ValueError(f"sequences is {self.sequences}; expected 1 to {self.rows}, the number of rows")

    @property
    def shard(self) -> ModelSpec:
        """The shard that one device computes with."""
        return sharded(self.spec, self.degree)

    @property
    def activation_bytes(self) -> int:
        """Bytes of the hidden states of all rows."""
        return self.rows * self.spec.hidden_size * BF16_BYTES

    def attention_block(self, count: float) -> Iterable[_Timed]:
        """Attention of `count` layers with its projections and norm; the all-reduce after it is an `exchange`."""
        spec, shard, kernels, rows = self.spec, self.shard, self.kernels, self.rows
        width, kv_width = shard.query_size, 2 * shard.kv_size
        yield "norm", self._norm(), count
        yield "qkv", self._gemm(width + kv_width, spec.hidden_size), count
        yield "rope_kv", kernels.elementwise(num_bytes=2 * rows * (width + kv_width) * BF16_BYTES), count
        attention = kernels.attention(
            rows=rows,
            context=self.context,
            sequences=self.sequences,
            heads=shard.num_heads,
            kv_heads=shard.num_kv_heads,
            head_dim=spec.head_dim,
            kv_dtype=self.kv_dtype,
        )
        yield "attention", attention, count
        yield "o", self._gemm(spec.hidden_size, width), count

    def feed_forward(self, count: float) -> Iterable[_Timed]:
        """Gated products of `count` layers with their norm; the all-reduce after them is an `exchange`."""
        spec, shard = self.spec, self.shard
        yield "norm", self._norm(), count
        yield "gate_up", self._gemm(2 * shard.intermediate_size, spec.hidden_size), count
        num_bytes = 3 * self.rows * shard.intermediate_size * BF16_BYTES
        yield "activation", self.kernels.elementwise(num_bytes=num_bytes), count
        yield "down", self._gemm(spec.hidden_size, shard.intermediate_size), count

    def exchanges(self, count: float, *, times_as_large: int = 1) -> Iterable[_Timed]:
        """All-reduces of the hidden states."""
        if self.degree > 1:
            num_bytes = self.activation_bytes * times_as_large
            times = all_reduce_times(self.kernels, num_bytes=num_bytes, degree=self.degree)
            name = self.collective or fastest(times)
            if name not in times:
                raise unknown("collective", name, times)
            yield "all_reduce", times[name], count

    def products(self, products: Iterable[Product]) -> Iterable[_Timed]:
        """Products beside those of the layers, their columns divided over the group."""
        for product in products:
            rows, count = (1, self.rows) if product.is_serial else (self.rows, 1)
            columns = -(-product.num_outputs // self.degree)
            time = self.kernels.gemm(rows=rows, n=columns, k=product.num_inputs, quant=self.quant)
            yield product.name, time, count

    def ends(self, answers: int) -> Iterable[_Timed]:
        """Embedding, last norm, and the LM head for `answers` rows, its columns divided over the group."""
        spec, kernels = self.spec, self.kernels
        yield from self.exchanges(1)  # the embedding's rows are divided over the group
        yield "embedding", kernels.elementwise(num_bytes=2 * self.activation_bytes), 1
        yield "norm", self._norm(), 1
        head = kernels.gemm(rows=answers, n=self.shard.vocab_size, k=spec.hidden_size, quant="bf16")
        yield "lm_head", head, 1
        if self.degree > 1:
            num_bytes = answers * self.shard.vocab_size * self.degree * BF16_BYTES
            yield "gather", kernels.all_gather(num_bytes=num_bytes, degree=self.degree), 1

    def _gemm(self, n: int, k: int) -> KernelTime:
        return self.kernels.gemm(rows=self.rows, n=n, k=k, quant=self.quant)

    def _norm(self) -> KernelTime:
        # Reads the hidden states and the residual, writes both.
        return self.kernels.elementwise(num_bytes=4 * self.activation_bytes)


def forward_parts(
    spec: ModelSpec,
    *,
    kernels: Kernels,
    quant: str,
    degree: int,
    rows: int,
    context: int,
    sequences: int = 1,
    collective: str | None = None,
    kv_dtype: str = "bf16",
    answers: int | None = None,
    host: Host | None = None,
    products: Sequence[Product] = (),
) -> tuple[Part, ...]:
    """Parts of a forward: equal operations of all layers together, with their seconds.

    Parameters
    ----------
    spec : ModelSpec
    kernels : Kernels
    quant : str
        Format of the layers' matrices; head and embeddings are in bf16.
    degree : int
        Devices of the group.
    rows : int
        Rows of all sequences together.
    context : int
        Tokens of KV of every sequence before this forward. Several rows of a sequence are a short query over them.
    sequences : int
    collective : str, optional
        One of `all_reduce_times`; the fastest if not given.
    kv_dtype : str
        bf16 or fp8.
    answers : int, optional
        Rows with logits; all if not given.
    host : Host, optional
        Without one, the parts are the devices' only.
    products : sequence of Product
        Of a head, beside those of its layers.
    """
    forward = _Forward(
        spec=spec,
        kernels=kernels,
        quant=quant,
        degree=degree,
        rows=rows,
        context=context,
        sequences=sequences,
        collective=collective,
        kv_dtype=kv_dtype,
    )
    layers = spec.num_layers
    return _summed(
        *forward.attention_block(layers),
        *forward.feed_forward(layers),
        *forward.exchanges(2 * layers),
        *forward.products(products),
        *forward.ends(answers or rows),
        *_host_time(host, degree),
    )


def fuzzy_parts(
    spec: ModelSpec,
    *,
    kernels: Kernels,
    quant: str,
    degree: int,
    rows: int,
    context: int,
    collective: str | None = None,
    host: Host | None = None,
) -> tuple[Part, ...]:
    """As `forward_parts`, with layers in groups of up to four: every device computes whole attention blocks.

    The first and the last layer are groups of one. A group's outputs are exchanged together; its feed-forward blocks
    run one after another, divided over the devices as usual.
    """
    forward = _Forward(
        spec=spec,
        kernels=kernels,
        quant=quant,
        degree=degree,
        rows=rows,
        context=context,
        sequences=1,
        collective=collective,
        kv_dtype="bf16",
    )
    alone = dataclasses.replace(forward, degree=1)
    sizes = [len(group) for group in layer_groups(range(spec.num_layers))]
    return _summed(
        *chain(*(alone.attention_block(-(-size // degree)) for size in sizes)),
        *chain(*(forward.exchanges(1, times_as_large=size) for size in sizes)),
        *forward.feed_forward(spec.num_layers),
        *forward.exchanges(spec.num_layers),
        *forward.ends(rows),
        *_host_time(host, degree),
    )


def _host_time(host: Host | None, degree: int) -> Iterable[_Timed]:
    if host is not None:
        seconds = host.step_s + host.group_s * log2(degree)
        yield "host", KernelTime(seconds, Provenance.INTERPOLATED), 1


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


def _summed(*timed: _Timed) -> tuple[Part, ...]:
    sums: dict[tuple[str, Provenance], float] = {}
    for name, (seconds, provenance), count in timed:
        key = (name, provenance)
        sums[key] = sums.get(key, 0.0) + seconds * count
    return tuple(
        Part(name=name, seconds=seconds, provenance=provenance) for (name, provenance), seconds in sums.items()
    )
