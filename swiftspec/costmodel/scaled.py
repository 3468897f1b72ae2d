"""Kernels of a device without op tables, from those of another one by the ratio of their rooflines."""

from collections.abc import Callable
from dataclasses import replace

from swiftspec.costmodel.kernel_latency import Kernels, KernelTime
from swiftspec.costmodel.measured import TableKernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.models.layer_parts import Experts, LatentAttention, LinearAttention
from swiftspec.timing.latency import Provenance

__all__ = ["ScaledKernels"]


class ScaledKernels(Kernels):
    """Every operation reaches the share of its roofline that it reaches on the tables' device.

    Only collectives are as measured, over the own links.

    device: the device without tables. experts: as of `TableKernels`.
    """

    def __init__(self, tables: OpTables, *, framework: str, device: DeviceSpec, experts: str | None = None) -> None:
        known = named_device(tables.device)
        linked = replace(known, link_bandwidth_Bps=device.link_bandwidth_Bps)
        super().__init__(device)
        self._measured = TableKernels(tables, framework=framework, device=linked, experts=experts)
        self._before, self._after = Kernels(known), Kernels(device)

    def gemm(self, *, rows: int, n: int, k: int, quant: str) -> KernelTime:
        return self._scaled(lambda kernels: kernels.gemm(rows=rows, n=n, k=k, quant=quant))

    def attention(
        self, *, rows: int, context: int, sequences: int, heads: int, kv_heads: int, head_dim: int, kv_dtype: str
    ) -> KernelTime:
        return self._scaled(
            lambda kernels: kernels.attention(
                rows=rows,
                context=context,
                sequences=sequences,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                kv_dtype=kv_dtype,
            )
        )

    def collectives(self, degree: int) -> tuple[str, ...]:
        return self._measured.collectives(degree)

    def all_reduce(self, *, num_bytes: int, degree: int, implementation: str) -> KernelTime:
        return self._measured.all_reduce(num_bytes=num_bytes, degree=degree, implementation=implementation)

    def all_gather(self, *, num_bytes: int, degree: int) -> KernelTime:
        return self._measured.all_gather(num_bytes=num_bytes, degree=degree)

    def elementwise(self, *, num_bytes: float) -> KernelTime:
        return self._scaled(lambda kernels: kernels.elementwise(num_bytes=num_bytes))

    def experts(self, part: Experts, *, rows: int, touched: float, hidden_size: int, quant: str) -> KernelTime:
        return self._scaled(
            lambda kernels: kernels.experts(part, rows=rows, touched=touched, hidden_size=hidden_size, quant=quant)
        )

    def latent_attention(
        self, part: LatentAttention, *, rows: int, context: int, sequences: int, kv_dtype: str = "bf16"
    ) -> KernelTime:
        return self._scaled(
            lambda kernels: kernels.latent_attention(
                part, rows=rows, context=context, sequences=sequences, kv_dtype=kv_dtype
            )
        )

    def linear_attention(self, part: LinearAttention, *, rows: int, sequences: int) -> KernelTime:
        return self._scaled(lambda kernels: kernels.linear_attention(part, rows=rows, sequences=sequences))

    def _scaled(self, operation: Callable[[Kernels], KernelTime]) -> KernelTime:
        slower = operation(self._after).seconds / operation(self._before).seconds
        return KernelTime(operation(self._measured).seconds * slower, Provenance.ROOFLINE)
