"""Memory of this machine: the limit beyond which a model is refused."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def require_memory(num_bytes: int, what: str) -> None:
    """ValueError, in one sentence, if `what` needs more memory than is free."""
    free = free_memory_bytes()
    if num_bytes > free:
        raise ValueError(
            f"{what} needs {num_bytes / 1e9:.3g} GB of memory; this machine has {free / 1e9:.3g} GB to spare"
        )


def free_memory_bytes() -> int:
    """Memory and swap that this process could get, as Linux estimates it, within the limit of its container."""
    known = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="ascii").splitlines())
    if "MemAvailable" not in known:
        return sys.maxsize
    free = sum(int(known[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree") if name in known)
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, max(0, limit - used))
    return free


def trim_memory() -> None:
    """Give what was freed back to the system: while a model is loaded, hundreds of megabytes are held for a moment."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
