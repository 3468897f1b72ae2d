"""This machine, as the operating system tells: its cores, the processor's name, and free ports."""

import os
import platform
import sys
from collections.abc import Set
from pathlib import Path


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


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port of one of this machine's addresses on which nothing listens, for now."""
    import socket  # takes 5 ms, which most commands avoid

    with socket.create_server((address, 0)) as trial:
        port: int = trial.getsockname()[1]
        return port
