"""Rows of the package's tables on mixtures of experts, latent attention and linear attention, renamed."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swiftspec.costmodel.importing import Record

__all__ = ["read_experts", "read_latent", "read_linear"]

Read = Callable[[Path, str, Sequence[str], Mapping[str, Sequence[Any]]], Iterator[Record]]
# Formats by their names there. fp8 with scales per tensor and per block read the same bytes.
_FORMATS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "nvfp4": "nvfp4",
}
# Routing in which few experts are much more popular than others, as traces have it; balanced routing touches more.
_ROUTING = "power_law_1.01"
_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_DIVISIONS = (1, 2, 4, 8, 16)
_MOST_SEQUENCES = 64
_KV_FORMATS = {"bfloat16": "bf16", "fp8": "fp8"}
_MOST_CONVOLVING = 10.0  # times the recurrence, beyond which a host was timed


def read_experts(read: Read, system: Path) -> Iterator[Record]:
    """Routed experts, divided either by width or whole."""
    wanted = {
        "distribution": (_ROUTING,),
        "num_tokens": _ROWS,
        "moe_dtype": tuple(_FORMATS),
        "moe_tp_size": _DIVISIONS,
        "moe_ep_size": _DIVISIONS,
    }
    columns = ("kernel_source", "hidden_size", "inter_size", "topk", "num_experts")
    for row in read(system, "moe/*/*/moe_perf.parquet", columns, wanted):
        if row["moe_tp_size"] != 1 and row["moe_ep_size"] != 1:
            continue
        yield {
            "framework": row["library"],
            "version": row["folder"],
            "kernel": row["kernel_source"],
            "dtype": _FORMATS[str(row["moe_dtype"])],
            "rows": row["num_tokens"],
            "hidden": row["hidden_size"],
            "size": row["inter_size"],
            "active": row["topk"],
            "experts": row["num_experts"],
            "parts": row["moe_tp_size"],
            "holders": row["moe_ep_size"],
            "latency_us": row["latency_us"],
        }


def read_latent(read: Read, system: Path) -> Iterator[Record]:
    """Latent attention alone: whole modules were timed as well, some of them waiting for their host."""
    columns = ("num_heads", "kv_cache_dtype", "step", "isl", "batch_size")
    fastest: dict[tuple[object, ...], Record] = {}
    for row in read(system, "mla/*/*/generation_mla_perf.parquet", columns, {"batch_size": range(_MOST_SEQUENCES + 1)}):
        found: Record = {
            "framework": row["library"],
            "version": row["folder"],
            "kv_dtype": _KV_FORMATS.get(str(row["kv_cache_dtype"]), str(row["kv_cache_dtype"])),
            "sequences": row["batch_size"],
            "context": int(row["step"]) + int(row["isl"]),
            "heads": row["num_heads"],
            "latency_us": row["latency_us"],
        }
        key = tuple(value for name, value in found.items() if name != "latency_us")
        if key not in fastest or float(found["latency_us"]) < float(fastest[key]["latency_us"]):
            fastest[key] = found
    yield from fastest.values()


def read_linear(read: Read, system: Path) -> Iterator[Record]:
    """Convolution and recurrence together: of one token, of several that are verified, or of a prompt in chunks."""
    columns = ("kernel_source", "phase", "seq_len", "num_k_heads", "num_v_heads", "batch_size")
    wanted = {"batch_size": range(_MOST_SEQUENCES + 1)}
    times: dict[tuple[str | int, ...], dict[str, float]] = defaultdict(dict)
    for kind, pattern in (("gdn", "linear_attention/*/*/gdn_perf.parquet"), ("kda", "kda/*/*/kda_perf.parquet")):
        for row in read(system, pattern, columns, wanted):
            rows, phase = int(row["seq_len"]), str(row["phase"])
            if (rows == 1) != (phase == "generation"):
                continue
            key = (str(row["library"]), str(row["folder"]), kind, phase)
            place = (int(row["batch_size"]), rows, int(row["num_k_heads"]), int(row["num_v_heads"]))
            part = "convolution" if "conv1d" in str(row["kernel_source"]) else "recurrence"
            known = times[*key, *place]
            known[part] = min(known.get(part, float("inf")), float(row["latency_us"]))
    yield from _fastest(times)


def _fastest(times: Mapping[tuple[str | int, ...], Mapping[str, float]]) -> Iterator[Record]:
    """Recurrence and convolution together; of verified rows where they were timed as such, else as a prompt's chunk."""
    best: dict[tuple[str | int, ...], float] = {}
    for (library, folder, kind, _, *place), parts in sorted(times.items(), key=lambda item: item[0][3] == "verify"):
        recurrence_us, convolution_us = parts.get("recurrence"), parts.get("convolution", 0.0)
        if recurrence_us is not None:
            is_sound = convolution_us <= _MOST_CONVOLVING * recurrence_us
            best[library, folder, kind, *place] = recurrence_us + convolution_us * is_sound
    for (framework, version, kind, sequences, rows, key_heads, value_heads), latency_us in best.items():
        yield {
            "framework": framework,
            "version": version,
            "kind": kind,
            "sequences": sequences,
            "rows": rows,
            "key_heads": key_heads,
            "value_heads": value_heads,
            "latency_us": latency_us,
        }
