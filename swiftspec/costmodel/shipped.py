"""Kernels of a device by its name: from the user's or the packaged op tables, else by roofline."""

from functools import cache
from pathlib import Path

from swiftspec.costmodel.kernel_latency import Kernels, RooflineKernels
from swiftspec.costmodel.measured import TableKernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import named_device
from swiftspec.files.document import file_sha256

__all__ = ["kernels_of", "shipped_tables", "source_of", "tables_of"]

_PROFILES = Path(__file__).parents[1] / "profiles"
# Same chip and memory, other links.
_STANDS_FOR = {"h800-sxm": "h100-sxm"}
_USUAL = "vllm"


def shipped_tables(device: str) -> Path | None:
    """Path of the op tables of a device, or of its twin."""
    path = _PROFILES / _STANDS_FOR.get(device, device) / "ops.npz"
    return path if path.exists() else None


def tables_of(device: str, path: Path | None = None) -> OpTables | None:
    """Op tables from a file, or the packaged ones; None if there are none.

    Raises
    ------
    ValueError
        For an unregistered device, or a file of another device.
    """
    named_device(device)
    found = path or shipped_tables(device)
    if found is None:
        return None
    tables = _loaded(found)
    if tables.device not in (device, _STANDS_FOR.get(device)):
        raise ValueError(f"{found}: op tables of {tables.device}; expected those of {device}")
    return tables


@cache
def kernels_of(
    device: str, *, framework: str | None = None, path: Path | None = None, experts: str | None = None
) -> Kernels:
    """Kernels of one library's tables; by default vLLM's, or the first in the tables. experts: of another's tables.

    Raises
    ------
    ValueError
        As `tables_of`, or if the tables have no rows of the library.
    """
    tables = tables_of(device, path)
    if tables is None:
        return RooflineKernels(named_device(device))
    known = tables.values("gemm", "framework")
    usual = _USUAL if _USUAL in known else known[0]
    return TableKernels(tables, framework=framework or usual, device=named_device(device), experts=experts)


def source_of(device: str, path: Path | None = None) -> str:
    """Source of a device's kernels in a phrase: origin of its tables, their licence and SHA-256."""
    tables = tables_of(device, path)
    found = path or shipped_tables(device)
    if tables is None or found is None:
        return f"rooflines of {device}: {named_device(device).source}"
    libraries = ", ".join(sorted({f"{source.library} {source.version}" for source in tables.sources}))
    shown = path or "/".join(found.parts[-2:])
    return (
        f"op tables of {tables.device}, {tables.num_measurements} measurements ({libraries}); {tables.attribution}; "
        f"{tables.licence}; {shown}, SHA-256 {file_sha256(found)}"
    )


@cache
def _loaded(path: Path) -> OpTables:
    return OpTables.load(path)
