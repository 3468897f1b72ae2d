"""Operations from a device's tables: between measured points by utilisation, elsewhere by roofline."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from typing import Any

import numpy as np

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.expert_shapes import ExpertCurve, ExpertShape, interpolated
from swiftspec.costmodel.grid import Grid, GridValue
from swiftspec.costmodel.kernel_latency import NCCL, Kernels, KernelTime, UnknownShapeError
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.models.layer_parts import Experts, GroupedAttention, LatentAttention, LinearAttention
from swiftspec.models.quantisation import BF16_BYTES, QUANTISATIONS
from swiftspec.timing.latency import Provenance, weakest

_Sizes = Any  # whole numbers, or arrays of them
# Formats with measured GEMMs: the device's peak that they run at, and the scales of their inputs.
_PEAKS = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
_SCALES = {"fp8": "found", "nvfp4": "given"}
# Packed query rows of one KV head, measured up to 128; more are further tiles, on idle multiprocessors.
_ROWS_LIBRARY, _MOST_PACKED = "sglang", 128
# Bytes from which vLLM's all-reduce sends every peer parts, not all, of a tensor: for up to 4 devices; for more.
_TWO_SHOT_BYTES_FEW, _TWO_SHOT_BYTES = 512 * 1024, 256 * 1024
_HARNESS_CONTEXT = 2  # the shortest cache that attention was timed on, leaving only kernel start and replay
_UNGATED = "nongated"  # in the name of a kernel
_MOST_PADDED = 128  # rows: a larger forward is a prompt, and is not padded


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCurve:
    """Cost of a GEMM by rows. rows: knots, ascending. times: at the knots; seconds never fall."""

    rows: tuple[int, ...]
    times: tuple[KernelTime, ...]

    @classmethod
    def padded(cls, times: Sequence[tuple[int, KernelTime]]) -> "RowCurve":
        """From times by rows, ascending: at each power of two the minimum of its time and those of larger ones.

        If no number of rows is a power of two, all of them are knots.
        """
        known = [(rows, time) for rows, time in times if rows.bit_count() == 1] or list(times)
        least = known[-1][1]
        falling = []
        for _, time in reversed(known):
            least = min(least, time, key=lambda candidate: candidate.seconds)
            falling.append(least)
        return cls(rows=tuple(rows for rows, _ in known), times=tuple(reversed(falling)))

    def at(self, rows: int) -> KernelTime:
        """Time at the next knot up to 128 rows; beyond, log-linear; after the last knot, the time there."""
        right = bisect_left(self.rows, rows)
        if right == len(self.rows):
            return self.times[-1]
        after = self.times[right]
        if right == 0 or self.rows[right] <= max(rows, _MOST_PADDED):
            return after
        before = self.times[right - 1]
        share = log(rows / self.rows[right - 1]) / log(self.rows[right] / self.rows[right - 1])
        seconds = before.seconds * (after.seconds / before.seconds) ** share
        return KernelTime(seconds, weakest((before.provenance, after.provenance, Provenance.INTERPOLATED)))


class TableKernels(Kernels):
    """Kernels of one library's tables; of sparse layers those of another one where it has no entry.

    A GEMM never costs more than the same one with more rows (see `RowCurve`). Those in fp8 and nvfp4 are priced
    without the quantisation of their input, which engines fuse into the preceding kernel; that to nvfp4 was not timed,
    and takes what one to fp8 by given scales takes. Attention is the tables' time above their harness floor, but at
    least the time to read the cache at the GEMMs' bandwidth, since it was measured with a warm cache. Weights in a
    format without a table are a roofline on their bytes.

    device: a device with the compute and memory of the tables' device, but perhaps other links. experts: the library
    whose kernels the routed experts have, if it is another one.
    """

    def __init__(
        self,
        tables: OpTables,
        *,
        framework: str = "vllm",
        device: DeviceSpec | None = None,
        experts: str | None = None,
    ) -> None:
        self._of_tables = named_device(tables.device)
        super().__init__(device or self._of_tables)
        self._tables, self._framework, self._experts = tables, framework, experts or framework
        self._implementations = tuple(tables.values("collective", "implementation"))
        # Composing a profile requests every operation dozens of times.
        self._gemm = cache(self._find_gemm)
        self._curve = cache(self._row_curve)
        self._attention = cache(self._find_attention)
        self._all_reduce = cache(self._find_all_reduce)
        self._gemms = cache(self._gemm_grid)
        self._quantisations = cache(self._quantisation_grid)
        self._attentions = cache(self._attention_grid)
        self._collectives = cache(self._collective_grid)
        self._curves = cache(self._expert_curves)
        self._between = cache(self._curves_between)
        self._latents = cache(self._latent_grid)
        self._linears = cache(self._linear_grid)

    def gemm(self, *, rows: int, n: int, k: int, quant: str) -> KernelTime:
        return self._gemm(rows, n, k, quant)

    def attention(
        self, part: GroupedAttention, *, rows: int, context: int, sequences: int, kv_dtype: str
    ) -> KernelTime:
        return self._attention(part, rows, context, sequences, kv_dtype)

    def collectives(self, degree: int) -> tuple[str, ...]:
        return (self._implementations or super().collectives(degree)) if degree > 1 else ()

    def all_reduce(self, *, num_bytes: int, degree: int, implementation: str) -> KernelTime:
        if implementation not in self.collectives(degree):
            expected = ", ".join(self.collectives(degree))
            raise ValueError(f"collective is {implementation!r}; expected one of {expected}")
        if not self._implementations:
            return super().all_reduce(num_bytes=num_bytes, degree=degree, implementation=implementation)
        return self._all_reduce("all_reduce", implementation, degree, num_bytes)

    def all_gather(self, *, num_bytes: int, degree: int) -> KernelTime:
        if NCCL not in self._implementations:
            return super().all_gather(num_bytes=num_bytes, degree=degree)
        return self._all_reduce("all_gather", NCCL, degree, num_bytes)

    def elementwise(self, *, num_bytes: float) -> KernelTime:
        seconds, _ = super().elementwise(num_bytes=num_bytes)
        return KernelTime(seconds, Provenance.INTERPOLATED)

    def experts(self, part: Experts, *, rows: int, touched: float, hidden_size: int, quant: str) -> KernelTime:
        """Routed experts of one layer. UnknownShapeError if no library's table has their shape, or some near it."""
        shape = ExpertShape.of(part, hidden_size, quant)
        found = self._curves().get(shape) or self._between(shape)
        if not found:
            raise UnknownShapeError(self._missing(shape, whole=part.is_divided_whole))
        own = self._experts in found
        curve = found[self._experts] if own else min(found.values(), key=lambda one: one.at(8))
        seconds = curve.touching(touched)
        if touched >= shape.touched(rows) - 1e-9:
            seconds = curve.at(rows)
        computing_s = self.experts_computing_s(part, rows=rows, hidden_size=hidden_size, quant=quant)
        known = Provenance.INTERPOLATED if own else Provenance.COMPOSED
        measured = own and shape in self._curves() and rows in curve.rows and seconds == curve.at(rows)
        return KernelTime(max(seconds, computing_s), Provenance.MEASURED if measured else known)

    def latent_attention(
        self, part: LatentAttention, *, rows: int, context: int, sequences: int, kv_dtype: str = "bf16"
    ) -> KernelTime:
        """As dense attention: above the harness floor, at least the roofline; prompts expanded."""
        roofline = super().latent_attention(part, rows=rows, context=context, sequences=sequences, kv_dtype=kv_dtype)
        grid = self._latents(kv_dtype)
        if grid is None:
            return roofline
        short_s = grid.at(sequences, _HARNESS_CONTEXT, part.num_heads).value
        growing_s = grid.at(sequences, context + 1, part.num_heads).value - short_s + CONSTANTS["gemm_floor_s"]
        # Rows of one sequence read one cache: what more of them cost is what more sequences cost without any.
        more_s = max(0.0, grid.at(rows, _HARNESS_CONTEXT, part.num_heads).value - short_s)
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

    def _find_gemm(self, rows: int, n: int, k: int, quant: str) -> KernelTime:
        curve = self._curve(n, k, quant)
        if curve is None:
            return super().gemm(rows=rows, n=n, k=k, quant=quant)
        seconds, provenance = curve.at(rows)
        if rows > curve.rows[-1]:
            # Beyond the tables, utilisation is held.
            seconds *= float(self._bound_s(rows, n, k, quant) / self._bound_s(curve.rows[-1], n, k, quant))
            provenance = weakest((provenance, Provenance.INTERPOLATED))
        return KernelTime(seconds, provenance)

    def _row_curve(self, n: int, k: int, quant: str) -> RowCurve | None:
        """Seconds by rows; None for a format without a table."""
        grid = self._gemms(quant)
        if grid is None:
            return None
        found = {int(rows): grid.at(rows, n, k) for rows in grid.axes[0]}
        # In a table with gaps some numbers of rows were measured for no shape nearby.
        known = [rows for rows in found if not found[rows].borrowed] or list(found)
        # Faster than its bytes for every number of rows: the weights had stayed in the L2, which they do not in a
        # forward.
        cached = any(found[rows].value < 1 for rows in known)
        times = []
        for rows in known:
            time = self._table_time(found[rows], rows, n, k, quant)
            uncached = super().gemm(rows=rows, n=n, k=k, quant=quant)
            times.append((rows, max(time, uncached, key=lambda one: one.seconds) if cached else time))
        return RowCurve.padded(times)

    def _table_time(self, found: GridValue, rows: int, n: int, k: int, quant: str) -> KernelTime:
        """Time at one number of rows of the tables."""
        seconds = found.value * float(self._bound_s(rows, n, k, quant))
        if quant == "bf16":
            return KernelTime(seconds, Provenance.MEASURED if found.exact else Provenance.INTERPOLATED)
        least_s = CONSTANTS["small_kernel_s"] + float(self._bound_s(rows, n, k, quant))
        quantisations = self._quantisations(_SCALES[quant])
        quantising_s = quantisations.at(rows, k).value if quantisations is not None else 0.0
        return KernelTime(max(seconds - quantising_s, least_s), Provenance.INTERPOLATED)

    def _bound_s(self, rows: _Sizes, n: _Sizes, k: _Sizes, quant: str) -> _Sizes:
        """Minimum seconds of GEMMs at the peaks of the tables' device; utilisation is this over the measured time."""
        num_bytes = n * k * QUANTISATIONS[quant].bytes_per_weight + rows * (n + k) * BF16_BYTES
        computing_s = 2.0 * rows * n * k / self._of_tables.peak_flops[_PEAKS[quant]]
        return np.maximum(num_bytes / self._of_tables.memory_bandwidth_Bps, computing_s)

    def _find_attention(
        self, part: GroupedAttention, rows: int, context: int, sequences: int, kv_dtype: str
    ) -> KernelTime:
        per_sequence, heads, kv_heads = -(-rows // sequences), part.num_heads, part.num_kv_heads
        reading_s, _ = super().attention(part, rows=rows, context=context, sequences=sequences, kv_dtype=kv_dtype)
        grid = self._attentions(self._framework, kv_dtype, part.head_dim)
        if grid is None:
            return KernelTime(reading_s, Provenance.ROOFLINE)
        found = grid.at(sequences, context + 1, heads, kv_heads)
        harness_s = grid.at(sequences, _HARNESS_CONTEXT, heads, kv_heads).value
        growing_s = found.value - harness_s + CONSTANTS["gemm_floor_s"]
        seconds = max(growing_s, reading_s) + self._packing_s(context + 1, per_sequence, heads // kv_heads)
        provenance = Provenance.INTERPOLATED if growing_s >= reading_s else Provenance.COMPOSED
        return KernelTime(seconds, provenance)

    def _packing_s(self, context: int, rows: int, group_size: int) -> float:
        """Extra time of several query rows of a sequence over one, both packed with the heads of a KV head."""
        grid = self._attentions(_ROWS_LIBRARY, "bf16", 128)
        if rows == 1 or grid is None:
            return 0.0
        packed = min(rows * group_size, _MOST_PACKED)
        return max(0.0, grid.at(1, context, packed, 1).value - grid.at(1, context, group_size, 1).value)

    def _find_all_reduce(self, op: str, implementation: str, degree: int, num_bytes: int) -> KernelTime:
        grid = self._collectives(op, implementation)
        found = grid.at(degree, num_bytes)
        seconds = found.value
        largest = grid.axes[1][-1]
        if num_bytes > largest:
            seconds *= num_bytes / largest
        wire_s = self._longer_wire_s(op, implementation, degree, num_bytes)
        if wire_s:
            return KernelTime(seconds + wire_s, Provenance.COMPOSED)
        return KernelTime(seconds, Provenance.MEASURED if found.exact else Provenance.INTERPOLATED)

    def _longer_wire_s(self, op: str, implementation: str, degree: int, num_bytes: int) -> float:
        """Extra time of an exchange over slower links than those of the tables' device."""
        slower = 1 / self.device.link_bandwidth_Bps - 1 / self._of_tables.link_bandwidth_Bps
        two_shot_bytes = _TWO_SHOT_BYTES_FEW if degree <= 4 else _TWO_SHOT_BYTES
        if op == "all_gather":
            sent = num_bytes / degree
        elif implementation == NCCL or num_bytes >= two_shot_bytes:
            sent = 2 / degree * num_bytes  # reduced in parts, then gathered
        else:
            # In one step; but since more bytes never cost less, at most what the smallest two-step message sends.
            sent = min(float(num_bytes), 2 / degree * two_shot_bytes)
        return (degree - 1) * sent * slower / CONSTANTS["link_share"]

    def _gemm_grid(self, dtype: str) -> Grid | None:
        if dtype not in _PEAKS:
            return None
        columns = self._tables.rows("gemm", framework=self._framework, dtype=dtype)
        if not len(columns["rows"]):
            return None
        rows, n, k = (columns[name].astype(float) for name in ("rows", "n", "k"))
        utilised = columns["latency_s"] / self._bound_s(rows, n, k, dtype)
        return Grid(np.stack([rows, n, k], axis=1), utilised, smooth_axis=0)

    def _quantisation_grid(self, scale: str) -> Grid | None:
        # SGLang's quantisation kernels are like vLLM's, and were not timed.
        for library in (self._framework, "vllm"):
            columns = self._tables.rows("quantisation", framework=library, scale=scale)
            if len(columns["rows"]):
                return Grid(np.stack([columns["rows"], columns["k"]], axis=1), columns["latency_s"])
        return None

    def _attention_grid(self, framework: str, kv_dtype: str, head_dim: int) -> Grid | None:
        columns = self._tables.rows("attention", framework=framework, kv_dtype=kv_dtype)
        chosen = columns["head_dim"] == head_dim
        if not chosen.any():
            others = self._tables.rows("attention", kv_dtype=kv_dtype)
            libraries = sorted(set(others["framework"][others["head_dim"] == head_dim].tolist()))
            return self._attentions(libraries[-1], kv_dtype, head_dim) if libraries else None
        axes = ("sequences", "context", "heads", "kv_heads")
        points = np.stack([columns[name][chosen] for name in axes], axis=1)
        return Grid(points, columns["latency_s"][chosen], rising_axis=axes.index("heads"))

    def _collective_grid(self, op: str, implementation: str) -> Grid:
        columns = self._tables.rows("collective", op=op, implementation=implementation)
        points = np.stack([columns["devices"], columns["num_bytes"]], axis=1)
        return Grid(points, columns["latency_s"], smooth_axis=1, rising_axis=1)

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
            curves[key][framework] = ExpertCurve.of(kernel, key, seconds)
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
                curves[framework] = ExpertCurve.of("interpolated", wanted, seconds)
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
        points = np.stack([columns[name][chosen] for name in axes], axis=1)
        return Grid(points, columns["latency_s"][chosen], smooth_axis=0)
