"""Op tables from the installed package `aiconfigurator-core`, which ships NVIDIA's measurements as parquet files."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swiftspec.costmodel.aiconfigurator_sparse import read_experts, read_latent, read_linear
from swiftspec.costmodel.importing import Measurements, Record, select
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import named_device
from swiftspec.errors import FieldError

__all__ = ["from_package"]

_DISTRIBUTION, _MODULE = "aiconfigurator-core", "aiconfigurator_core"
_SYSTEMS = {"b200": "b200_sxm", "b300": "b300_sxm", "rtx-pro-6000": "rtx_pro_6000_server"}
_COLLECTIVES = {"vllm": "vllm_custom", "sglang": "sglang_custom", "trtllm": "trtllm"}
_DTYPES = {"bfloat16": "bf16", "half": "fp16"}
_GEMM_DTYPES = ("bfloat16", "fp8", "nvfp4")
_DENSE_ROWS, _MOST_SEQUENCES = 128, 8
_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "int8": 1}
_MS_TO_US = 1e3
_IF_THERE = ("window_size",)  # older tables have attention without a window only


def from_package(*, device: str) -> OpTables:
    """Tables of one device.

    ValueError: one sentence, if the package or pyarrow is not installed, or the package has no measurements of the
    device.
    """
    named_device(device)
    system = _data() / _SYSTEMS.get(device, device.replace("-", "_"))
    if not system.is_dir():
        raise FieldError("device", repr(device), f"{_DISTRIBUTION} {version(_DISTRIBUTION)} has no measurements of it")
    return select(
        Measurements(
            device=device,
            rows={
                "gemm.csv": list(_gemms(system)),
                "attention.csv": list(_attentions(system)),
                "all_reduce.csv": list(_collectives(system)),
                "elementwise.csv": list(_quantisations(system)),
                "experts.csv": list(read_experts(_read, system)),
                "latent_attention.csv": list(read_latent(_read, system)),
                "linear_attention.csv": list(read_linear(_read, system)),
            },
            licence="Apache-2.0",
            attribution=(
                "Copyright (c) NVIDIA CORPORATION & AFFILIATES. Measured by NVIDIA; selected and converted from "
                f"{_DISTRIBUTION} {version(_DISTRIBUTION)} (github.com/ai-dynamo/aiconfigurator)"
            ),
        )
    )


def _data() -> Path:
    try:
        version(_DISTRIBUTION)
    except PackageNotFoundError:
        raise ValueError(
            f"--from aiconfigurator needs the package {_DISTRIBUTION}, which is not installed: "
            f"pip install --no-deps {_DISTRIBUTION}==0.12.0"
        ) from None
    spec = find_spec(_MODULE)
    if spec is None or spec.origin is None:
        raise ValueError(f"{_DISTRIBUTION} is installed, but its module {_MODULE} cannot be found")
    return Path(spec.origin).parent / "systems" / "data"


def _read(system: Path, pattern: str, columns: Sequence[str], wanted: Mapping[str, Sequence[Any]]) -> Iterator[Record]:
    """Rows of one table over all libraries and versions, where their columns have wanted values."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError("--from aiconfigurator needs pyarrow, which is not installed: pip install pyarrow") from None
    for path in sorted(system.glob(pattern)):
        present = parquet.read_schema(path).names
        names = {*columns, *wanted, "latency"} - ({*_IF_THERE} - {*present})
        if missing := names - {*present}:
            raise ValueError(f"{path}: column {min(missing)} is missing")
        filters = [(name, "in", list(values)) for name, values in wanted.items() if name in names]
        table = parquet.read_table(path, columns=sorted(names | ({"version"} & {*present})), filters=filters or None)
        library, folder = path.parts[-3:-1]
        for row in table.to_pylist():
            latency_us = float(row["latency"]) * _MS_TO_US
            yield {"version": folder, **row, "folder": folder, "library": library, "latency_us": latency_us}


def _gemms(system: Path) -> Iterator[Record]:
    """All row counts up to 128, powers of two beyond: a prompt's exact length matters little."""
    rows = [*range(1, _DENSE_ROWS + 1), *(2**power for power in range(8, 16))]
    wanted = {"gemm_dtype": _GEMM_DTYPES, "m": rows}
    for row in _read(system, "gemm/*/*/gemm_perf.parquet", ("n", "k"), wanted):
        dtype = str(row["gemm_dtype"])
        yield {**row, "framework": row["library"], "dtype": _DTYPES.get(dtype, dtype)}


def _attentions(system: Path) -> Iterator[Record]:
    """Decoding attention without a window, for the numbers of sequences that are planned for."""
    wanted = {"window_size": (0,), "head_dim": (64, 128), "batch_size": range(1, _MOST_SEQUENCES + 1)}
    columns = ("num_heads", "num_key_value_heads", "kv_cache_dtype", "step", "isl")
    for row in _read(system, "attention/*/*/generation_attention_perf.parquet", columns, wanted):
        yield {
            **row,
            "framework": row["library"],
            "kind": "generation",
            "kv_dtype": _DTYPES.get(str(row["kv_cache_dtype"]), str(row["kv_cache_dtype"])),
            "batch": row["batch_size"],
            "kv_len": int(row["step"]) + int(row["isl"]),
            "heads": row["num_heads"],
            "kv_heads": row["num_key_value_heads"],
        }


def _collectives(system: Path) -> Iterator[Record]:
    """The libraries' own all-reduces inside a graph, and NCCL's. These tables count messages in elements."""
    for row in _read(
        system, "comm/*/*/custom_allreduce_perf.parquet", ("kernel_source", "num_gpus"), {"message_size": _SIZES}
    ):
        if row["version"] != row["folder"]:
            continue  # a copy of another library's table
        mode = "eager" if str(row["kernel_source"]).endswith("eager") else "graph"
        implementation = _COLLECTIVES[str(row["library"])]
        yield {**row, **_message(row, "bf16"), "op": "all_reduce", "implementation": implementation, "mode": mode}
    columns = ("op_name", "num_gpus")
    wanted = {"nccl_dtype": ("half",), "message_size": _SIZES}
    for row in _read(system, "comm/nccl/*/nccl_perf.parquet", columns, wanted):
        yield {**row, **_message(row, "fp16"), "op": row["op_name"], "implementation": "nccl", "mode": "stream"}


_SIZES = [2**power for power in range(7, 30)]


def _message(row: Record, dtype: str) -> Record:
    num_bytes = int(row["message_size"]) * _ELEMENT_BYTES[dtype]
    return {"dtype": dtype, "gpus": row["num_gpus"], "message_bytes": num_bytes}


def _quantisations(system: Path) -> Iterator[Record]:
    rows = list(range(1, _DENSE_ROWS + 1))
    for file, op in (("scale_matrix", "fp8_quant_static"), ("computescale", "fp8_quant_dynamic_minus_static")):
        wanted = {"quant_dtype": ("fp8",), "m": rows}
        for row in _read(system, f"quantize/*/*/{file}_perf.parquet", ("k",), wanted):
            if row["library"] != "sglang":  # timed unfused, 5 to 10 us, unlike the quantisation that its GEMMs include
                yield {**row, "framework": row["library"], "op": op}
