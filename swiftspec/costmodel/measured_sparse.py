"""Mixtures, latent and linear attention from a device's tables: between row counts by the experts they touch."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np
import numpy.typing as npt

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.expert_shapes import ExpertShape, interpolated
from swiftspec.costmodel.grid import Grid
from swiftspec.costmodel.kernel_latency import Kernels, KernelTime, UnknownShapeError
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.routing import independent
from swiftspec.devices import DeviceSpec
from swiftspec.models.layer_parts import Experts, LatentAttention, LinearAttention
from swiftspec.timing.latency import Provenance

__all__ = ["ExpertCurve", "SparseTableKernels"]

HARNESS_CONTEXT = 2  # the shortest cache that attention was timed on, leaving only kernel start and replay
_UNGATED = "nongated"  # in the name of a kernel
_SATURATED = 0.01  # of the experts: row counts that differ by less are interpolated by rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCurve:
    """Seconds of one layer's routed experts by rows: a start, and a time for each expert that the rows touch.

    rows: measured, ascending. seconds: at these; more rows never take less, since a forward can be padded.
    """

    kernel: str
    num_experts: int
    num_active: int
    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, kernel: str, seconds: Mapping[int, float], *, num_experts: int, num_active: int) -> "ExpertCurve":
        rows = tuple(sorted(seconds))
        least = np.minimum.accumulate([seconds[count] for count in reversed(rows)])[::-1]
        return cls(
            kernel=kernel,
            num_experts=num_experts,
            num_active=num_active,
            rows=rows,
            seconds=tuple(float(value) for value in least),
        )

    def at(self, rows: float) -> float:
        """Seconds of this many rows with independent routing, which need not be whole: linear in experts touched."""
        if rows <= self.rows[0]:
            return self.seconds[0]
        if rows >= self.rows[-1]:
            return self.seconds[-1] * rows / self.rows[-1]
        right = int(np.searchsorted(self.rows, rows))
        touched = [self._touched(count) for count in (self.rows[right - 1], rows, self.rows[right])]
        if touched[2] - touched[0] > _SATURATED * self.num_experts:
            share = (touched[1] - touched[0]) / (touched[2] - touched[0])
        else:
            share = (rows - self.rows[right - 1]) / (self.rows[right] - self.rows[right - 1])
        before, after = self.seconds[right - 1], self.seconds[right]
        return before + share * (after - before)

    def touching(self, experts: float) -> float:
        """Seconds of the rows that touch this many experts."""
        free = max(1e-12, 1 - experts / self.num_experts)
        if self.num_active == self.num_experts:
            return self.at(1)
        return self.at(log(free) / log(1 - self.num_active / self.num_experts))

    def _touched(self, rows: float) -> float:
        return independent(rows, num_experts=self.num_experts, num_active=self.num_active)


class SparseTableKernels(Kernels):
    """Kernels of sparse layers' three tables, of one library where it has an entry, else of another one.

    experts: the library of the routed experts, if it is another one.
    """

    def __init__(self, tables: OpTables, *, framework: str, device: DeviceSpec, experts: str | None = None) -> None:
        super().__init__(device)
        self._tables = tables
        self._experts = experts or framework
        self._framework = framework
        self._curves = cache(self._expert_curves)
        self._between = cache(self._curves_between)
        self._latents = cache(self._latent_grid)
        self._linears = cache(self._linear_grid)

    def experts(self, part: Experts, *, rows: int, touched: float, hidden_size: int, quant: str) -> KernelTime:
        """Routed experts of one layer. UnknownShapeError if no library's table has their shape, or some near it."""
        shape = ExpertShape.of(part, hidden_size, quant)
        found = self._curves().get(shape) or self._between(shape)
        if not found:
            raise UnknownShapeError(self._missing(shape, whole=part.is_divided_whole))
        own = self._experts in found
        curve = found[self._experts] if own else min(found.values(), key=lambda one: one.at(8))
        seconds = curve.touching(touched)
        if touched >= independent(rows, num_experts=part.num_experts, num_active=part.num_active) - 1e-9:
            seconds = curve.at(rows)
        computing_s = self.experts_computing_s(part, rows=rows, hidden_size=hidden_size, quant=quant)
        known = Provenance.INTERPOLATED if own else Provenance.COMPOSED
        measured = own and shape in self._curves() and rows in curve.rows and seconds == curve.at(rows)
        return KernelTime(max(seconds, computing_s), Provenance.MEASURED if measured else known)

    def latent_attention(
        self, part: LatentAttention, *, rows: int, context: int, sequences: int, kv_dtype: str = "bf16"
    ) -> KernelTime:
        """As dense attention of `TableKernels`: above the harness floor, at least the roofline; prompts expanded."""
        roofline = super().latent_attention(part, rows=rows, context=context, sequences=sequences, kv_dtype=kv_dtype)
        grid = self._latents(kv_dtype)
        if grid is None:
            return roofline
        short_s = grid.at(sequences, HARNESS_CONTEXT, part.num_heads).value
        growing_s = grid.at(sequences, context + 1, part.num_heads).value - short_s + CONSTANTS["gemm_floor_s"]
        # Rows of one sequence read one cache: what more of them cost is what more sequences cost without any.
        more_s = max(0.0, grid.at(rows, HARNESS_CONTEXT, part.num_heads).value - short_s)
        seconds = growing_s + more_s
        expanded = self.expanded_attention(part, rows=rows, context=context, sequences=sequences)
        if expanded and expanded.seconds < seconds:
            return KernelTime(expanded.seconds, Provenance.COMPOSED)
        if seconds < roofline.seconds:
            return KernelTime(roofline.seconds, Provenance.COMPOSED)
        return KernelTime(seconds, Provenance.INTERPOLATED if rows == sequences else Provenance.COMPOSED)

    def linear_attention(self, part: LinearAttention, *, rows: int, sequences: int) -> KernelTime:
        """Convolution and recurrence: several rows in a chunk, or one after another if that takes less."""
        grid = self._linears(part.kind)
        if grid is None:
            return super().linear_attention(part, rows=rows, sequences=sequences)
        each = -(-rows // sequences)
        together = grid.at(sequences, each, part.num_value_heads)
        alone_s = grid.at(sequences, 1, part.num_value_heads).value * each
        seconds = min(together.value, alone_s)
        measured = together.exact and seconds == together.value
        return KernelTime(seconds, Provenance.MEASURED if measured else Provenance.INTERPOLATED)

    def _missing(self, wanted: ExpertShape, *, whole: bool) -> str:
        dtype, hidden, size, active, experts, parts, holders = wanted
        how = f"whole ones on each of {holders} devices" if whole else f"divided by {parts}"
        known = sorted({shape.dtype for shape in self._curves() if shape[1:5] == wanted[1:5]})
        other = f"; it has them in {', '.join(known)}" if known and dtype not in known else ""
        return (
            f"the op tables of {self._tables.device} do not have {experts} experts of width {size}, {active} of them "
            f"active over {hidden} values, in {dtype}, {how}{other}"
        )

    def _expert_curves(self) -> Mapping[ExpertShape, Mapping[str, ExpertCurve]]:
        columns = self._tables.tables["experts"]
        times: dict[tuple[ExpertShape, str, str], dict[int, float]] = defaultdict(dict)
        lists = [columns[name].tolist() for name in (*ExpertShape._fields, "framework", "kernel", "rows", "latency_s")]
        for *shape, framework, kernel, rows, seconds in zip(*lists, strict=True):
            times[ExpertShape(*shape), framework, kernel][rows] = seconds
        curves: dict[ExpertShape, dict[str, ExpertCurve]] = defaultdict(dict)
        for (key, framework, kernel), seconds in times.items():
            curves[key][framework] = ExpertCurve.of(kernel, seconds, num_experts=key.experts, num_active=key.active)
        return dict(curves)

    def _curves_between(self, wanted: ExpertShape) -> Mapping[str, ExpertCurve]:
        """Curves of a shape that was not measured, from the nearest measured ones of each library."""
        known = self._curves()
        # Experts of two matrices read and compute less than the others.
        ungated = {shape[1:5] for shape, found in known.items() for one in found.values() if _UNGATED in one.kernel}
        curves = {}
        for framework in self._tables.values("experts", "framework"):
            measured = {
                shape: dict(zip(found[framework].rows, found[framework].seconds, strict=True))
                for shape, found in known.items()
                if framework in found and shape[1:5] not in ungated
            }
            if seconds := interpolated(wanted, measured, Kernels(self.device)):
                curves[framework] = ExpertCurve.of(
                    "interpolated", seconds, num_experts=wanted.experts, num_active=wanted.active
                )
        return curves

    def _latent_grid(self, kv_dtype: str) -> Grid | None:
        axes = ("sequences", "context", "heads")
        # Of an engine without rows of its own. SGLang's kernel for fp8 on Hopper converts the cache as it reads it, and
        # takes up to seven times as long as TensorRT-LLM's.
        return self._grid("latent_attention", axes, {"kv_dtype": kv_dtype}, otherwise="trtllm" * (kv_dtype == "fp8"))

    def _linear_grid(self, kind: str) -> Grid | None:
        return self._grid("linear_attention", ("sequences", "rows", "value_heads"), {"kind": kind})

    def _grid(self, table: str, axes: Sequence[str], wanted: Mapping[str, str], *, otherwise: str = "") -> Grid | None:
        columns = self._tables.rows(table, **wanted)
        libraries = sorted(set(columns["framework"].tolist()))
        if not libraries:
            return None
        library = next(name for name in (self._framework, otherwise, libraries[0]) if name in libraries)
        chosen = columns["framework"] == library
        points: npt.NDArray[np.float64] = np.stack([columns[name][chosen] for name in axes], axis=1).astype(float)
        return Grid(points, columns["latency_s"][chosen], smooth_axis=0)
