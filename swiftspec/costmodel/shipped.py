"""Kernels of a device by its name: from the user's or the packaged op tables, else by roofline."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from swiftspec.costmodel.kernel_latency import Kernels, KernelTime
from swiftspec.costmodel.measured import TableKernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import DEVICES, DeviceSpec, named_device
from swiftspec.errors import FieldError
from swiftspec.files.document import file_sha256
from swiftspec.timing.latency import Provenance


def _scaled(operation: str) -> Callable[..., KernelTime]:
    """An operation of `Kernels`, as `ScaledKernels` has it."""

    def scaled(self: "ScaledKernels", *part: Any, **sizes: Any) -> KernelTime:
        before_s, after_s, measured_s = (
            getattr(kernels, operation)(*part, **sizes).seconds
            for kernels in (self._before, self._after, self._measured)
        )
        return KernelTime(measured_s * (after_s / before_s), Provenance.ROOFLINE)

    return scaled


class ScaledKernels(Kernels):
    """Every operation reaches its roofline's share as on the tables' device; only collectives are as measured.

    device: the device without tables. experts: as of `TableKernels`.
    """

    def __init__(self, tables: OpTables, *, framework: str, device: DeviceSpec, experts: str | None = None) -> None:
        known = named_device(tables.device)
        linked = replace(known, link_bandwidth_Bps=device.link_bandwidth_Bps)
        super().__init__(device)
        self._measured = TableKernels(tables, framework=framework, device=linked, experts=experts)
        self._before, self._after = Kernels(known), Kernels(device)

    gemm = _scaled("gemm")
    attention = _scaled("attention")
    elementwise = _scaled("elementwise")
    experts = _scaled("experts")
    latent_attention = _scaled("latent_attention")
    linear_attention = _scaled("linear_attention")

    def collectives(self, degree: int) -> tuple[str, ...]:
        return self._measured.collectives(degree)

    def all_reduce(self, **exchange: Any) -> KernelTime:
        return self._measured.all_reduce(**exchange)

    def all_gather(self, **exchange: Any) -> KernelTime:
        return self._measured.all_gather(**exchange)


_PROFILES = Path(__file__).parents[1] / "profiles"
_USUAL = "vllm"
_loaded = cache(OpTables.load)


def shipped_tables(device: str) -> Path | None:
    """Path of the op tables of a device, or of the one that it stands on."""
    path = _PROFILES / (_stands_on(device) or device) / "ops.npz"
    return path if path.exists() else None


def tables_of(device: str, path: Path | None = None) -> OpTables | None:
    """Op tables from a file, or the packaged ones; None if there are none. ValueError for a file of another device."""
    named_device(device)
    found = path or shipped_tables(device)
    if found is None:
        return None
    tables = _loaded(found)
    if tables.device not in (device, _stands_on(device)):
        raise ValueError(f"{found}: op tables of {tables.device}; expected those of {device}")
    return tables


@cache
def kernels_of(
    device: str, *, framework: str | None = None, path: Path | None = None, experts: str | None = None
) -> Kernels:
    """Kernels of one library's tables; by default vLLM's, or the first in the tables. experts: of another's tables.

    ValueError: as `tables_of`, or if the tables have no rows of the library.
    """
    tables = tables_of(device, path)
    if tables is None:
        return Kernels(named_device(device))
    known, spec = tables.values("gemm", "framework"), named_device(device)
    if framework is None:
        framework = _USUAL if _USUAL in known else known[0]
    elif framework not in known:
        raise FieldError("engine", framework, f"the op tables of {device} hold {', '.join(known)}")
    kind = TableKernels if spec.is_as_fast_as(named_device(tables.device)) else ScaledKernels
    return kind(tables, framework=framework, device=spec, experts=experts)


def described_kernels(device: str, path: Path | None = None) -> str:
    """Where a device's kernels are from, a phrase."""
    if (tables := tables_of(device, path)) is None:
        return f"rooflines of {device}: {named_device(device).source}"
    libraries = ", ".join(sorted({f"{source.library} {source.version}" for source in tables.sources}))
    scaled = "" if device == tables.device else f", scaled to the bandwidth, compute and links of {device}"
    return f"op tables of {tables.device}{scaled}, {tables.num_measurements} measurements ({libraries})"


def source_of(device: str, path: Path | None = None) -> str:
    """The same with the licence of its tables, and their SHA-256."""
    described, tables, found = described_kernels(device, path), tables_of(device, path), path or shipped_tables(device)
    if tables is None or found is None:
        return described
    shown = path or "/".join(found.parts[-2:])
    return f"{described}; {tables.attribution}; {tables.licence}; {shown}, SHA-256 {file_sha256(found)}"


def _stands_on(device: str) -> str:
    return DEVICES[device].op_tables if device in DEVICES else ""
