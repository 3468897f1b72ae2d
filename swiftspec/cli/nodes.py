"""`swiftspec run` and `serve` on several machines: on a Ray cluster, or as a process of torchrun's."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs
from swiftspec.cli.verbs.plans import RunFlags
from swiftspec.engine.process.interrupts import interrupts_noted

if TYPE_CHECKING:
    from swiftspec.devices.local import Device
    from swiftspec.engine.cluster.torchrun import TorchrunProcess
    from swiftspec.engine.process.placement import Executor
    from swiftspec.engine.process.protocol import WorkerSpec

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun only
_TORCH_LOGS = "TORCH_CPP_LOG_LEVEL"
_SECRET_FILE = "SWIFTSPEC_SECRET_FILE"


def is_of_torchrun(asked: RunFlags) -> bool:
    return asked.ray is None and _TORCHRUN in os.environ


def serve_rank(asked: RunFlags, plan: Plan, candidate: Candidate) -> bool:
    """Keep a rank for the first of torchrun's processes, until that ends; false if this process is not another one.

    ValueError or EngineError as of `TorchrunProcess.host`.
    """
    if not is_of_torchrun(asked) or (process := _torchrun(plan, candidate)).rank == 0:
        return False
    host = process.host(device=_device(plan), secret=_read_secret(asked))
    with interrupts_noted():  # Ctrl-C goes to all processes, and is from now on process 0's to handle
        host.serve()
    return True


def executor_of(asked: RunFlags, plan: Plan, candidate: Candidate) -> AbstractContextManager["Executor | None"]:
    """Where a candidate's processes run; None is this machine."""
    if not is_of_torchrun(asked):
        return on_ray(asked.ray, plan, candidate)
    process, slots = _torchrun(plan, candidate), _slots(plan, candidate)
    return process.launch(slots, device=_device(plan), secret=_read_secret(asked))


def _read_secret(asked: RunFlags) -> bytes:
    """Secret from --secret, or from the file that the environment names. ValueError without either."""
    from swiftspec.engine.channel.curve import MAKE_ONE, read_secret

    path = asked.secret or os.environ.get(_SECRET_FILE)
    if not path:
        raise ValueError(
            "--secret is missing; it is what keeps other users out, even on one machine: "
            f"make one with {MAKE_ONE}, and give every node a copy"
        )
    return read_secret(Path(path))


def on_ray(address: str | None, plan: Plan, candidate: Candidate) -> AbstractContextManager["Executor | None"]:
    """A Ray cluster for a candidate's processes; without an address this machine, which is None."""
    if address is None:
        return nullcontext()
    from swiftspec.engine.cluster.ray_cluster import ray_executor

    return ray_executor(plan, candidate.policy, address=address)


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
    from swiftspec.engine.channel.curve import write_secret

    check_outputs(beside={"--new-secret": out})
    write_secret(out)
    console.note(f"{out}: a new secret, for --secret of every process under torchrun; keep it private")
