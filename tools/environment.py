"""Environment of a measurement: the device and its clocks, the system, its packages and tools."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

_TOOLS = ("gcc", "ncu", "compute-sanitizer", "nvcc")
_GPU_FIELDS = (
    *("name", "driver_version", "memory.total", "pstate", "temperature.gpu", "power.draw", "power.limit"),
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "ecc.mode.current", "mig.mode.current"),
)
_TOOL_LIMIT_S = 20.0  # nvidia-smi takes seconds without its daemon, and may hang if the driver has failed


def environment_record(device: str, *, commit: str, triton_cache: Path | None) -> dict[str, Any]:
    """One record of kind `environment`.

    Parameters
    ----------
    device : str
        "cuda" or "cpu".
    commit : str
        Commit of the code that runs.
    triton_cache : Path, optional
        Folder whose entries are counted: the kernels compiled ahead.
    """
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
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    """Version of every package by name; if it is installed twice, the version that is imported."""
    found: dict[str, str] = {}
    for each in distributions():  # in the order of sys.path
        if each.read_text("METADATA") or each.read_text("PKG-INFO"):  # an interrupted installation leaves neither
            found.setdefault(each.metadata["Name"], each.version)
    return dict(sorted(found.items()))


def _nvidia_smi() -> list[str]:
    line = _first_line("nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader")
    return line.split(", ") if line else []


def _first_line(*command: str) -> str:
    """First line that a program prints; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TOOL_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0]
