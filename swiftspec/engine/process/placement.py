"""Placement of the engine's processes: checked devices, and the TP groups of the processes on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from swiftspec.devices.local import Device, num_devices_here
from swiftspec.engine.process.fork_server_client import ForkServer
from swiftspec.engine.process.protocol import Setup, name_of
from swiftspec.engine.process.worker_handle import LocalWorker, Worker
from swiftspec.policies.effects import Role

__all__ = [
    "Executor",
    "LocalExecutor",
    "WorkerSpec",
    "check_groups",
    "ranks_of",
    "worker_specs",
]


class Executor(Protocol):
    """Backend that places an engine's processes and gives them the addresses to reach each other."""

    def num_devices(self, device: Device, /) -> int:
        """Number of devices of a kind."""

    def channel(self, target: WorkerSpec, draft: WorkerSpec, /) -> str:
        """Address of the channel between the leader of a target group and that of the draft."""

    def tp_group(self, name: str, setups: Sequence[Setup], /) -> str:
        """Meeting place of a TP group of several ranks, different for each name."""

    def start(self, setup: Setup) -> Worker:
        """Start a process, without waiting; it loads its models and reports Ready, or Failed.

        EngineError or ValueError if it cannot even be started.
        """


class LocalExecutor:
    """This machine. Sockets and meeting places are files in `folder`: nothing is bound to a network."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self._folder = folder
        self._fork_server = fork_server

    def num_devices(self, device: Device) -> int:
        return num_devices_here(device)

    def channel(self, target: WorkerSpec, _draft: WorkerSpec, /) -> str:
        return f"ipc://{self._folder / f'channel-{target.group}'}"

    def tp_group(self, name: str, _setups: Sequence[Setup], /) -> str:
        return f"file://{self._folder / f'tp-group-{name}'}"

    def start(self, setup: Setup) -> Worker:
        return LocalWorker.start(setup, self._fork_server)


class WorkerSpec(NamedTuple):
    """Devices of one process: a rank of a role's, or of a target group's, TP group."""

    role: Role
    group: int
    rank: int
    size: int
    devices: tuple[int, ...]

    @property
    def name(self) -> str:
        """As `Setup.name`."""
        return name_of(self.role, self.group, self.rank, self.size)


def ranks_of(
    role: Role, devices: tuple[int, ...], ranks: Mapping[Role, int], *, target_groups: int, device: Device
) -> int:
    """Processes of each of a role's TP groups: the given number, or one on a CPU and one for each GPU."""
    num_groups = target_groups if role is Role.TARGET else 1
    return ranks.get(role, 1 if device == "cpu" else max(1, len(devices) // num_groups))


def check_groups(
    groups: Mapping[Role, tuple[int, ...]],
    ranks: Mapping[Role, int],
    *,
    target_groups: int,
    device: Device,
    num_available: int,
) -> None:
    """ValueError unless every device exists, and every process gets as many as it can use."""
    for role, devices in groups.items():
        if not devices or max(devices) >= num_available or min(devices) < 0:
            raise ValueError(
                f"{role} is placed on devices {list(devices)}; this machine offers {num_available}, numbered from 0"
            )
        num_groups = target_groups if role is Role.TARGET else 1
        if len(devices) % num_groups:
            raise ValueError(f"{role} is placed on {len(devices)} devices; expected {num_groups} equal groups")
        size = ranks_of(role, devices, ranks, target_groups=target_groups, device=device)
        per_group = len(devices) // num_groups
        if size < 1 or per_group % size or (device == "cuda" and per_group != size):
            noun, expected = ("GPUs", "one for each") if device == "cuda" else ("devices", "as many for each")
            raise ValueError(f"{role} has {size} ranks on {per_group} {noun} of a group; expected {expected}")


def worker_specs(
    groups: Mapping[Role, tuple[int, ...]], ranks: Mapping[Role, int], *, target_groups: int, device: Device
) -> list[list[WorkerSpec]]:
    """The processes of every TP group, target groups first; their devices are consecutive slices of the role's."""
    tp_groups = []
    for role, devices in sorted(groups.items(), key=lambda item: list(Role).index(item[0])):
        num_groups = target_groups if role is Role.TARGET else 1
        size = ranks_of(role, devices, ranks, target_groups=target_groups, device=device)
        share = len(devices) // (num_groups * size)
        slices = [devices[first : first + share] for first in range(0, len(devices), share)]
        for group in range(num_groups):
            tp_groups.append([WorkerSpec(role, group, rank, size, slices[group * size + rank]) for rank in range(size)])
    return tp_groups
