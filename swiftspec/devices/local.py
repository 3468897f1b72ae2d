"""Device discovery on this machine; imports torch only when GPUs are asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

__all__ = ["TREE_SLOTS", "Device", "num_devices_here", "usable_device"]

Device = Literal["cpu", "cuda"]
TREE_SLOTS: dict[Device, int] = {"cpu": 512, "cuda": 256}  # most tree rows of any policy; eight words of a kernel


def num_devices_here(device: str) -> int:
    """Number of cores that this process may use, or of GPUs that torch can."""
    if device == "cpu":
        return len(os.sched_getaffinity(0))
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def usable_device(name: str) -> torch.device:
    """`cpu`, `cuda` (the first GPU) or `cuda:N`. ValueError for any other, and for a GPU that does not exist."""
    import torch

    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise ValueError(f"device is {name!r}; expected cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    num_gpus = num_devices_here("cuda")
    if int(number or 0) >= num_gpus:
        raise ValueError(f"device is {name!r}, but torch finds {num_gpus} GPUs here")
    return torch.device("cuda", int(number or 0))
