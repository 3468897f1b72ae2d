"""Device discovery on this machine; imports torch only when GPUs are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from swiftspec.errors import FieldError
from swiftspec.machine import cores_here

if TYPE_CHECKING:
    import torch

Device = Literal["cpu", "cuda"]
TREE_SLOTS: dict[Device, int] = {"cpu": 512, "cuda": 256}  # most tree rows of any policy; eight words of a kernel


def num_devices_here(device: str) -> int:
    """Number of cores that this process may use, or of GPUs that torch can."""
    if device == "cpu":
        return len(cores_here())
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_device(name: str) -> None:
    """ValueError for any but `cpu`, `cuda` (the first GPU) and `cuda:N`, and for a GPU that does not exist."""
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise FieldError("device", repr(name), "expected cpu, cuda or cuda:N")
    if kind == "cuda" and int(number or 0) >= (num_gpus := num_devices_here("cuda")):
        raise FieldError("device", f"{name!r}, but torch finds {num_gpus} GPUs here")


def usable_device(name: str) -> torch.device:
    """The device of that name. ValueError as `check_device`."""
    check_device(name)
    import torch

    kind, _, number = name.partition(":")
    return torch.device(kind, int(number or 0)) if kind == "cuda" else torch.device("cpu")
