"""Op tables from the installed package `aiconfigurator-core`, which ships NVIDIA's measurements as parquet files."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swiftspec.costmodel.importing import Record, select
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.devices import named_device
from swiftspec.errors import FieldError
from swiftspec.models.quantisation import BF16_BYTES

_DISTRIBUTION, _MODULE = "aiconfigurator-core", "aiconfigurator_core"
_SYSTEMS = {"b200": "b200_sxm", "b300": "b300_sxm", "rtx-pro-6000": "rtx_pro_6000_server"}
_COLLECTIVES = {"vllm": "vllm_custom", "sglang": "sglang_custom", "trtllm": "trtllm"}
_DTYPES = {"bfloat16": "bf16", "half": "fp16"}
_GEMM_DTYPES = ("bfloat16", "fp8", "nvfp4")
_DENSE_ROWS, _MOST_SEQUENCES = 128, 8
_SIZES = [2**power for power in range(7, 30)]  # of messages, in elements
_CACHE = {"kv_cache_dtype": "kv_cache_dtype", "step": "step", "isl": "isl"}
_MS_TO_US = 1e3
_IF_THERE = ("window_size",)  # older tables have attention without a window only


def from_package(*, device: str) -> OpTables:
    """Tables of one device. ValueError, one sentence, if a package is missing, or has no measurements of the device."""
    named_device(device)
    system = _data() / _SYSTEMS.get(device, device.replace("-", "_"))
    if not system.is_dir():
        raise FieldError("device", repr(device), f"{_DISTRIBUTION} {version(_DISTRIBUTION)} has no measurements of it")
    readers = {
        "gemm.csv": _gemms,
        "attention.csv": _attentions,
        "all_reduce.csv": _collectives,
        "elementwise.csv": _quantisations,
        "experts.csv": _experts,
        "latent_attention.csv": _latent,
        "linear_attention.csv": _linear,
    }
    return select(
        {name: list(read(system)) for name, read in readers.items()},
        device=device,
        licence="Apache-2.0",
        attribution=(
            "Copyright (c) NVIDIA CORPORATION & AFFILIATES. Measured by NVIDIA; selected and converted from "
            f"{_DISTRIBUTION} {version(_DISTRIBUTION)} (github.com/ai-dynamo/aiconfigurator)"
        ),
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


def _read(
    system: Path, pattern: str, columns: Mapping[str, str], wanted: Mapping[str, Sequence[Any]]
) -> Iterator[Record]:
    """Rows of one table over all libraries and versions, where their columns have wanted values.

    columns: theirs by our names, which rows have, too.
    """
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError("--from aiconfigurator needs pyarrow, which is not installed: pip install pyarrow") from None
    for path in sorted(system.glob(pattern)):
        present = parquet.read_schema(path).names
        names = {*columns.values(), *wanted, "latency"} - ({*_IF_THERE} - {*present})
        if missing := names - {*present}:
            raise ValueError(f"{path}: column {min(missing)} is missing")
        filters = [(name, "in", list(values)) for name, values in wanted.items() if name in names]
        table = parquet.read_table(path, columns=sorted(names | ({"version"} & {*present})), filters=filters or None)
        framework, folder = path.parts[-3:-1]
        for row in table.to_pylist():
            ours = {name: row[theirs] for name, theirs in columns.items()}
            latency_us = float(row["latency"]) * _MS_TO_US
            yield {"version": folder, **row, **ours, "folder": folder, "framework": framework, "latency_us": latency_us}


def _gemms(system: Path) -> Iterator[Record]:
    """All row counts up to 128, powers of two beyond: a prompt's exact length matters little."""
    rows = [*range(1, _DENSE_ROWS + 1), *(2**power for power in range(8, 16))]
    wanted = {"gemm_dtype": _GEMM_DTYPES, "m": rows}
    for row in _read(system, "gemm/*/*/gemm_perf.parquet", {"n": "n", "k": "k"}, wanted):
        yield {**row, "dtype": _dtype(row["gemm_dtype"])}


def _dtype(theirs: str | int | float) -> str:
    return _DTYPES.get(str(theirs), str(theirs))


def _attentions(system: Path) -> Iterator[Record]:
    """Decoding attention without a window, for the numbers of sequences that are planned for."""
    wanted = {"window_size": (0,), "head_dim": (64, 128), "batch_size": range(1, _MOST_SEQUENCES + 1)}
    columns = {"heads": "num_heads", "kv_heads": "num_key_value_heads", "batch": "batch_size", **_CACHE}
    for row in _read(system, "attention/*/*/generation_attention_perf.parquet", columns, wanted):
        kv_len = int(row["step"]) + int(row["isl"])
        yield {**row, "kind": "generation", "kv_dtype": _dtype(row["kv_cache_dtype"]), "kv_len": kv_len}


def _collectives(system: Path) -> Iterator[Record]:
    """The libraries' own all-reduces inside a graph, and NCCL's. These tables count messages in elements."""
    columns, wanted = {"gpus": "num_gpus", "source": "kernel_source"}, {"message_size": _SIZES}
    for row in _read(system, "comm/*/*/custom_allreduce_perf.parquet", columns, wanted):
        if row["version"] != row["folder"]:
            continue  # a copy of another library's table
        mode = "eager" if str(row["source"]).endswith("eager") else "graph"
        implementation = _COLLECTIVES[str(row["framework"])]
        size: Record = {"dtype": "bf16", "message_bytes": BF16_BYTES * int(row["message_size"])}
        yield {**row, **size, "op": "all_reduce", "implementation": implementation, "mode": mode}
    columns, of_nccl = {"gpus": "num_gpus", "op": "op_name"}, {**wanted, "nccl_dtype": ("half",)}
    for row in _read(system, "comm/nccl/*/nccl_perf.parquet", columns, of_nccl):
        size = {"dtype": "fp16", "message_bytes": BF16_BYTES * int(row["message_size"])}  # of as many bytes
        yield {**row, **size, "implementation": "nccl", "mode": "stream"}


def _quantisations(system: Path) -> Iterator[Record]:
    wanted = {"quant_dtype": ("fp8",), "m": range(1, _DENSE_ROWS + 1)}
    for file, op in (("scale_matrix", "fp8_quant_static"), ("computescale", "fp8_quant_dynamic_minus_static")):
        for row in _read(system, f"quantize/*/*/{file}_perf.parquet", {"k": "k"}, wanted):
            # SGLang's was timed unfused, 5 to 10 us, unlike the quantisation that its GEMMs include.
            if row["framework"] != "sglang":
                yield {**row, "op": op}


# Formats of experts by their names there. fp8 with scales per tensor and per block read the same bytes.
_FORMATS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "nvfp4": "nvfp4",
}
_EXPERTS = {
    "rows": "num_tokens",
    "hidden": "hidden_size",
    "size": "inter_size",
    "active": "topk",
    "experts": "num_experts",
    "parts": "moe_tp_size",
    "holders": "moe_ep_size",
    "kernel": "kernel_source",
}
# Routing in which few experts are much more popular than others, as traces have it; balanced routing touches more.
_ROUTING = "power_law_1.01"
_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_DIVISIONS = (1, 2, 4, 8, 16)
_SPARSE_SEQUENCES = range(64 + 1)
_LATENT = ("framework", "version", "kv_dtype", "sequences", "context", "heads")
_LINEAR = ("framework", "version", "kind", "sequences", "rows", "key_heads", "value_heads")
_MOST_CONVOLVING = 10.0  # times the recurrence, beyond which a host was timed


def _experts(system: Path) -> Iterator[Record]:
    """Routed experts, divided either by width or whole."""
    wanted = {
        "distribution": (_ROUTING,),
        "num_tokens": _ROWS,
        "moe_dtype": tuple(_FORMATS),
        "moe_tp_size": _DIVISIONS,
        "moe_ep_size": _DIVISIONS,
    }
    for row in _read(system, "moe/*/*/moe_perf.parquet", _EXPERTS, wanted):
        if row["parts"] == 1 or row["holders"] == 1:
            yield {**row, "version": row["folder"], "dtype": _FORMATS[str(row["moe_dtype"])]}


def _latent(system: Path) -> Iterator[Record]:
    """Latent attention alone: whole modules were timed as well, some of them waiting for their host."""
    columns = {"heads": "num_heads", "sequences": "batch_size", **_CACHE}
    fastest: dict[tuple[object, ...], Record] = {}
    for row in _read(system, "mla/*/*/generation_mla_perf.parquet", columns, {"batch_size": _SPARSE_SEQUENCES}):
        context = int(row["step"]) + int(row["isl"])
        timed = {**row, "version": row["folder"], "kv_dtype": _dtype(row["kv_cache_dtype"]), "context": context}
        place = tuple(timed[name] for name in _LATENT)
        fastest[place] = min(fastest.get(place, timed), timed, key=lambda one: one["latency_us"])
    yield from fastest.values()


def _linear(system: Path) -> Iterator[Record]:
    """Convolution and recurrence together: of one token, of several that are verified, or of a prompt in chunks."""
    names = ("kernel_source", "phase", "seq_len", "num_k_heads", "num_v_heads")
    columns, wanted = dict(zip(names, names, strict=True)), {"batch_size": _SPARSE_SEQUENCES}
    times: dict[tuple[tuple[str | int, ...], str], dict[str, float]] = defaultdict(dict)
    for kind, pattern in (("gdn", "linear_attention/*/*/gdn_perf.parquet"), ("kda", "kda/*/*/kda_perf.parquet")):
        for row in _read(system, pattern, columns, wanted):
            rows, phase = int(row["seq_len"]), str(row["phase"])
            if (rows == 1) != (phase == "generation"):
                continue
            sizes = (int(row["batch_size"]), rows, int(row["num_k_heads"]), int(row["num_v_heads"]))
            known = times[(str(row["framework"]), str(row["folder"]), kind, *sizes), phase]
            part = "convolution" if "conv1d" in str(row["kernel_source"]) else "recurrence"
            known[part] = min(known.get(part, float("inf")), float(row["latency_us"]))
    best: dict[tuple[str | int, ...], float] = {}
    # Of verified rows where they were timed as such, else as a prompt's chunk.
    for (place, _), parts in sorted(times.items(), key=lambda item: item[0][1] == "verify"):
        if (recurrence_us := parts.get("recurrence")) is not None:
            convolution_us = parts.get("convolution", 0.0)
            is_sound = convolution_us <= _MOST_CONVOLVING * recurrence_us
            best[place] = recurrence_us + convolution_us * is_sound
    for place, latency_us in best.items():
        yield {**dict(zip(_LINEAR, place, strict=True)), "latency_us": latency_us}
