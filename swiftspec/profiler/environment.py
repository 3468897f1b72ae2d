"""What a measurement ran on: the device and its clocks, the system, its packages and tools."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

__all__ = ["environment_record"]

_TOOLS = ("gcc", "ncu", "compute-sanitizer", "nvcc")
_GPU_FIELDS = (
    *("name", "driver_version", "memory.total", "pstate", "temperature.gpu", "power.draw", "power.limit"),
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "ecc.mode.current", "mig.mode.current"),
)


def environment_record(device: str, *, commit: str, triton_cache: Path | None) -> dict[str, Any]:
    """One record. triton_cache: whose entries are counted, which says what was compiled ahead."""
    gpu = dict(zip(_GPU_FIELDS, _nvidia_smi(), strict=False)) if device == "cuda" else {}
    return {
        "kind": "environment",
        "device": gpu.get("name") or f"{platform.processor() or platform.machine()}, no GPU",
        "gpu": gpu,
        "commit": commit,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tools": {tool: shutil.which(tool) for tool in _TOOLS},
        "gcc": _first_line("gcc", "--version"),
        "triton_cache_entries": len(list(triton_cache.iterdir())) if triton_cache and triton_cache.is_dir() else 0,
        "packages": dict(sorted({each.metadata["Name"]: each.version for each in distributions()}.items())),
    }


def _nvidia_smi() -> list[str]:
    line = _first_line("nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader")
    return line.split(", ") if line else []


def _first_line(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.partition("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return ""
