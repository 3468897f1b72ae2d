"""Which process of the engine runs where: devices, checked, and the cores or the GPU of each process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from swiftspec.policies.effects import Role

__all__ = ["Process", "check_groups", "disaggregated", "placed", "usable_device"]


class Process(NamedTuple):
    """Whose program runs where."""

    role: Role
    rank: int
    devices: tuple[int, ...]
    channels: tuple[str, ...]


def usable_device(name: str) -> torch.device:
    """`cpu`, `cuda` (the first GPU) or `cuda:N`. ValueError for any other, and for a GPU that is not there."""
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdecimal())):
        raise ValueError(f"device is {name!r}; expected cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= num_gpus:
        raise ValueError(f"device is {name!r}, but torch finds {num_gpus} GPUs here")
    return torch.device("cuda", int(number or 0))


def check_groups(groups: Mapping[Role, tuple[int, ...]], *, target_groups: int, device: str) -> None:
    """ValueError unless every device is there, and every rank gets as many as it can use."""
    num_available = len(os.sched_getaffinity(0)) if device == "cpu" else torch.cuda.device_count()
    for role, devices in groups.items():
        if not devices or max(devices) >= num_available or min(devices) < 0:
            raise ValueError(
                f"{role} is placed on devices {list(devices)}; this machine offers {num_available}, numbered from 0"
            )
        num_ranks = target_groups if role is Role.TARGET else 1
        if len(devices) % num_ranks:
            raise ValueError(f"{role} is placed on {len(devices)} devices; expected {num_ranks} equal groups")
        if device != "cpu" and len(devices) != num_ranks:
            raise ValueError(f"{role} is placed on {len(devices)} GPUs; expected {num_ranks}, one for each process")


def placed(devices: tuple[int, ...], device: str) -> dict[str, Any]:
    """Cores and device of a process: device n is the n-th core that this process may use, or GPU n."""
    available = tuple(sorted(os.sched_getaffinity(0)))
    if device == "cpu":
        return {"cores": tuple(available[number] for number in devices), "device": device}
    return {"cores": available, "device": f"cuda:{devices[0]}"}


def disaggregated(groups: Mapping[Role, tuple[int, ...]], target_groups: int, folder: Path) -> list[Process]:
    """A process per target group, and one of the draft, with a channel to each of them."""
    channels = tuple(f"ipc://{folder / f'channel-{rank}'}" for rank in range(target_groups))
    size = len(groups[Role.TARGET]) // target_groups
    targets = [
        Process(Role.TARGET, rank, groups[Role.TARGET][rank * size : (rank + 1) * size], (channel,))
        for rank, channel in enumerate(channels)
    ]
    return [*targets, Process(Role.DRAFT, 0, groups[Role.DRAFT], channels)]
