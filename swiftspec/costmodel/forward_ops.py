"""Operations of a forward on a group of devices, with the number of times that each is run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from swiftspec.costmodel.kernel_latency import NCCL, Kernels, KernelTime
from swiftspec.costmodel.routing import Routing
from swiftspec.errors import FieldError
from swiftspec.models.heads import Product
from swiftspec.models.layer_parts import GroupedAttention
from swiftspec.models.names import unknown
from swiftspec.models.quantisation import BF16_BYTES, QUANTISATIONS
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec, dense_format
from swiftspec.timing.latency import Provenance

FUSED = "fused"  # residual and norm in the same kernel
OpTime = tuple[str, KernelTime, float]  # name, time of one, count


class Group(NamedTuple):
    """All ranks of attention in data parallel together: their number, and the rows and sequences of all."""

    ranks: int
    rows: int
    sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOps:
    """Operations that forwards have in common, with their counts.

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
    def shard(self) -> ModelSpec:
        return sharded(self.spec, self.degree * self.group.ranks)

    @property
    def activation_bytes(self) -> int:
        return self.rows * self.spec.hidden_size * BF16_BYTES

    def grouped_attention(self, part: GroupedAttention, count: float) -> Iterable[OpTime]:
        """Attention of `count` layers with its projections and norm; the all-reduce after it is an `exchange`."""
        spec, kernels, rows = self.spec, self.kernels, self.rows
        width, kv_width = part.query_size, part.kv_values
        products = (1 + part.is_gated) * width + kv_width // (1 + part.takes_keys)
        yield "norm", self.norm(), count
        yield "qkv", self.gemm(products, spec.hidden_size), count
        yield "rope_kv", kernels.elementwise(num_bytes=2 * rows * (width + kv_width) * BF16_BYTES), count
        context = min(self.context, part.window) if part.window else self.context
        attention = kernels.attention(
            part, rows=rows, context=context, sequences=self.sequences, kv_dtype=self.kv_dtype
        )
        yield "attention", attention, count
        if part.is_gated:
            yield "gate", kernels.elementwise(num_bytes=3 * rows * width * BF16_BYTES), count
        yield "o", self.gemm(spec.hidden_size, width), count

    def network(self, count: float, size: int) -> Iterable[OpTime]:
        """Gated products of this width."""
        yield "gate_up", self.gemm(2 * size, self.spec.hidden_size), count
        yield "activation", self.kernels.elementwise(num_bytes=3 * self.rows * size * BF16_BYTES), count
        yield "down", self.gemm(self.spec.hidden_size, size), count

    def exchanges(self, count: float) -> Iterable[OpTime]:
        """All-reduces of the hidden states."""
        return self.all_reduces(count, num_bytes=self.activation_bytes)

    def all_reduces(self, count: float, *, num_bytes: int) -> Iterable[OpTime]:
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
            yield product.name, self.gemm(columns, product.num_inputs, rows=rows), count

    def ends(self, answers: int) -> Iterable[OpTime]:
        """Embedding, last norm, and the LM head for `answers` rows, its columns divided over the group."""
        spec, kernels = self.spec, self.kernels
        yield from self.exchanges(1)  # the embedding's rows are divided over the group
        yield "embedding", kernels.elementwise(num_bytes=2 * self.activation_bytes), 1
        yield "norm", self.norm(), 1
        head = kernels.gemm(rows=answers, n=self.shard.vocab_size, k=spec.hidden_size, quant="bf16")
        yield "lm_head", head, 1
        if self.degree > 1:
            num_bytes = answers * self.shard.vocab_size * self.degree * BF16_BYTES
            yield "gather", kernels.all_gather(num_bytes=num_bytes, degree=self.degree), 1

    def gemm(self, n: int, k: int, *, rows: int | None = None) -> KernelTime:
        """A product of all rows, or of so many, with weights in the format of the layers' matrices."""
        return self.kernels.gemm(rows=rows or self.rows, n=n, k=k, quant=dense_format(self.quant, self.spec))

    def norm(self) -> KernelTime:
        """A norm that reads the hidden states and the residual, and writes both."""
        return self.kernels.elementwise(num_bytes=4 * self.activation_bytes)


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
