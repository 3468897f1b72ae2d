"""This machine, as the operating system tells: its cores, and the processor's name."""

import os
import platform
import sys
from collections.abc import Set
from pathlib import Path

__all__ = ["cores_here", "device_name"]


def cores_here() -> Set[int]:
    """Cores that this process may use; all of the machine's where the system does not tell them apart."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def device_name() -> str:
    """The processor's own name and the number of cores that this process may use."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {len(cores_here())} cores"
