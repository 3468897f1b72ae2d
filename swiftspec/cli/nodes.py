"""`swiftspec run` and `serve` on several machines: on a Ray cluster, or as a process of torchrun's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs

if TYPE_CHECKING:
    from swiftspec.devices.local import Device
    from swiftspec.engine.cluster.torchrun import TorchrunProcess
    from swiftspec.engine.process.placement import Executor
    from swiftspec.engine.process.protocol import WorkerSpec

__all__ = ["NodeOptions", "on_ray", "write_new_secret"]

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun only
_TORCH_LOGS = "TORCH_CPP_LOG_LEVEL"
_SECRET_FILE = "SWIFTSPEC_SECRET_FILE"


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Flags about machines. ray: address of a cluster. secret: file of torchrun's processes."""

    ray: str | None = None
    secret: Path | None = None

    @property
    def is_here(self) -> bool:
        """Whether the engine's processes are all this machine's, and this program's."""
        return self.ray is None and _TORCHRUN not in os.environ

    def serve_rank(self, plan: Plan, candidate: Candidate) -> bool:
        """Keep a rank for the first of torchrun's processes, until that ends; false if this process is not another one.

        ValueError or EngineError as of `TorchrunProcess.host`.
        """
        if self.ray is not None or _TORCHRUN not in os.environ:
            return False
        process = _torchrun(plan, candidate)
        if process.rank == 0:
            return False
        from swiftspec.engine.process.interrupts import interrupts_noted

        host = process.host(device=_device(plan), secret=self._read_secret())
        with interrupts_noted():  # Ctrl-C goes to all processes, and is from now on process 0's to handle
            host.serve()
        return True

    @contextmanager
    def executor(self, plan: Plan, candidate: Candidate) -> Iterator["Executor | None"]:
        """Where a candidate's processes run; None is this machine."""
        if self.ray is None and _TORCHRUN in os.environ:
            process, slots = _torchrun(plan, candidate), _slots(plan, candidate)
            with process.launch(slots, device=_device(plan), secret=self._read_secret()) as executor:
                yield executor
        else:
            with on_ray(self.ray, plan, candidate) as there:
                yield there

    def _read_secret(self) -> bytes:
        """Secret from --secret, or from the file that the environment names. ValueError without either."""
        from swiftspec.engine.channel.curve import MAKE_ONE, read_secret

        path = self.secret or os.environ.get(_SECRET_FILE)
        if not path:
            raise ValueError(
                "--secret is missing; it is what keeps other users out, even on one machine: "
                f"make one with {MAKE_ONE}, and give every node a copy"
            )
        return read_secret(Path(path))


@contextmanager
def on_ray(address: str | None, plan: Plan, candidate: Candidate) -> Iterator["Executor | None"]:
    """A Ray cluster for a candidate's processes; without an address this machine, which is None."""
    if address is None:
        yield None
        return
    from swiftspec.engine.cluster.ray_cluster import ray_executor

    with ray_executor(plan, candidate.policy, address=address) as executor:
        yield executor


def _torchrun(plan: Plan, candidate: Candidate) -> "TorchrunProcess":
    """This process; ValueError if torchrun has started too few or too many."""
    os.environ.setdefault(_TORCH_LOGS, "ERROR")  # before torch loads: its store warns about hosts without a name
    from swiftspec.engine.cluster.torchrun import TorchrunProcess

    process = TorchrunProcess.of(os.environ)
    process.check(_slots(plan, candidate), what=candidate.describe())
    return process


def _slots(plan: Plan, candidate: Candidate) -> "list[WorkerSpec]":
    from swiftspec.engine.process.placement import Placement

    placement = Placement(
        groups=candidate.groups,
        ranks=candidate.ranks,
        target_groups=candidate.build().target_groups,
        device=_device(plan),
    )
    return [spec for tp_group in placement.worker_specs() for spec in tp_group]


def _device(plan: Plan) -> "Device":
    return "cuda" if plan.device == "cuda" else "cpu"


def write_new_secret(out: Path) -> None:
    """Write a new secret."""
    from swiftspec.engine.channel.curve import write_secret

    check_outputs(beside={"--new-secret": out})
    write_secret(out)
    console.note(f"{out}: a new secret, for --secret of every process under torchrun; keep it private")
