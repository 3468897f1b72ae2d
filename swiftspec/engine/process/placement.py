"""Placement of the engine's processes: checked devices, and the TP groups of the processes on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from swiftspec.devices.local import Device, num_devices_here
from swiftspec.engine.process.fork_server_client import ForkServer
from swiftspec.engine.process.protocol import Setup, WorkerSpec
from swiftspec.engine.process.worker_handle import LocalWorker, Worker
from swiftspec.policies.effects import Role
from swiftspec.scheduler.routing import Replicas


class Executor(Protocol):
    """Backend that places an engine's processes and gives them the addresses to reach each other."""

    def num_devices(self, device: Device, /) -> int:
        """Number of devices of a kind."""

    def channel(self, target: WorkerSpec, draft: WorkerSpec, /) -> str:
        """Address of the channel between the leader of a target group and that of a draft group."""

    def tp_group(self, name: str, /) -> str:
        """Meeting place of a TP group of several ranks, different for each name."""

    def start(self, setup: Setup) -> Worker:
        """Start a process, without waiting; it loads its models and reports ProcessInfo, or FailureReport.

        EngineError or ValueError if it cannot even be started.
        """


class LocalExecutor:
    """This machine. Sockets and meeting places are files in `folder`: nothing is bound to a network."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self._folder = folder
        self._fork_server = fork_server

    def num_devices(self, device: Device) -> int:
        return num_devices_here(device)

    def channel(self, target: WorkerSpec, draft: WorkerSpec, /) -> str:
        return f"ipc://{self._folder / f'channel-{target.group}-{draft.group}'}"

    def tp_group(self, name: str, /) -> str:
        return f"file://{self._folder / f'tp-group-{name}'}"

    def start(self, setup: Setup) -> Worker:
        return LocalWorker.start(setup, self._fork_server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices of an engine's roles, and the processes among which they are divided.

    groups: device n is the n-th core this process may use, or GPU n. Disaggregated: groups of both roles, disjoint
        unless they share a GPU; otherwise only the target's group, for both models.
    ranks: processes that divide each of a role's groups, and its models, equally; the default is one on a CPU, with a
        thread per core, and one for each GPU.
    target_groups, draft_groups: equal groups that a role's devices are split into, each with a copy of its model.
    """

    groups: Mapping[Role, tuple[int, ...]]
    ranks: Mapping[Role, int] = field(default_factory=dict)
    target_groups: int = 1
    draft_groups: int = 1
    device: Device = "cpu"

    def check(self, num_available: int) -> None:
        """ValueError unless every device exists, and every process gets as many as it can use."""
        for role, devices in self.groups.items():
            if not devices or max(devices) >= num_available or min(devices) < 0:
                raise ValueError(
                    f"{role} is placed on devices {list(devices)}; this machine offers {num_available}, numbered from 0"
                )
            num_groups, size = self._split(role)
            if len(devices) % num_groups:
                raise ValueError(f"{role} is placed on {len(devices)} devices; expected {num_groups} equal groups")
            per_group, is_gpu = len(devices) // num_groups, self.device == "cuda"
            if size < 1 or per_group % size or (is_gpu and per_group != size):
                noun, expected = ("GPUs", "one for each") if is_gpu else ("devices", "as many for each")
                raise ValueError(f"{role} has {size} ranks on {per_group} {noun} of a group; expected {expected}")

    def replicated(self, replicas: Replicas) -> Self:
        """The placement of several targets and drafts: this one's, and the devices after all of these."""
        return replace(
            self,
            groups=replicas.devices(self.groups),
            target_groups=self.target_groups * replicas.num_targets,
            draft_groups=self.draft_groups * replicas.num_groups[Role.DRAFT],
        )

    def worker_specs(self) -> list[list[WorkerSpec]]:
        """The processes of every TP group, target groups first; their devices are consecutive slices of the role's."""
        tp_groups = []
        for role in (role for role in Role if role in self.groups):
            devices, (num_groups, size) = self.groups[role], self._split(role)
            share = len(devices) // (num_groups * size)
            slices = [devices[first : first + share] for first in range(0, len(devices), share)]
            for group in range(num_groups):
                own = slices[group * size : (group + 1) * size]
                tp_groups.append([WorkerSpec(role, group, rank, size, part) for rank, part in enumerate(own)])
        return tp_groups

    def _split(self, role: Role) -> tuple[int, int]:
        num_groups = self.target_groups if role is Role.TARGET else self.draft_groups
        usual = 1 if self.device == "cpu" else max(1, len(self.groups[role]) // num_groups)
        return num_groups, self.ranks.get(role, usual)
