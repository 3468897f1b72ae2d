"""`swiftspec run` on several nodes: this node's rank and its part of the work."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.document import file_sha256
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs
from swiftspec.devices.local import num_devices_here
from swiftspec.version import __version__

if TYPE_CHECKING:
    from swiftspec.engine.channel.curve import Curve
    from swiftspec.engine.cluster.nodes import ClusterExecutor
    from swiftspec.engine.cluster.rendezvous import Meeting, NodeFacts, Rendezvous

__all__ = ["NodeOptions", "join", "node_executor", "secret"]

_TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun only
_TORCH_LOGS = "TORCH_CPP_LOG_LEVEL"
_SECRET_FILE = "SWIFTSPEC_SECRET_FILE"
_NUM_PORTS = 16  # for channels to target groups of one node


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Flags about nodes; under torchrun only the secret is needed."""

    num_nodes: int | None = None
    rank: int | None = None
    rendezvous: str | None = None
    secret: Path | None = None
    timeout_s: float = 60.0

    def resolve(self) -> "Rendezvous | None":
        """Rendezvous with the other nodes; None for a single node. ValueError for flags that do not fit together."""
        is_told = self.num_nodes is not None or self.rank is not None or self.rendezvous is not None
        if not is_told and _TORCHRUN not in os.environ:
            return None
        os.environ.setdefault(_TORCH_LOGS, "ERROR")  # before torch loads: its store warns about hosts without a name
        from swiftspec.engine.cluster.rendezvous import Rendezvous, from_torchrun

        if not is_told:
            return from_torchrun(os.environ)
        if self.num_nodes is None or self.rank is None or self.rendezvous is None:
            raise ValueError("expected all of --nnodes, --node-rank and --rendezvous, or none of them")
        return Rendezvous.at(self.rendezvous, rank=self.rank, num_nodes=self.num_nodes, timeout_s=self.timeout_s)

    def read_secret(self) -> bytes:
        """Secret from --secret, or from the file that the environment names. ValueError without either."""
        from swiftspec.engine.channel.curve import MAKE_ONE, read_secret

        path = self.secret or os.environ.get(_SECRET_FILE)
        if not path:
            raise ValueError(
                "--secret is missing; it is what keeps other users out, even on one machine: "
                f"make one with {MAKE_ONE}, and give every node a copy"
            )
        return read_secret(Path(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """This node among the others, before they have met."""

    meeting: "Meeting"
    own: "NodeFacts"
    curve: "Curve"


@contextmanager
def _joined(options: NodeOptions, rendezvous: "Rendezvous", plan: Plan, source: Path) -> Iterator[_Joined]:
    from swiftspec.engine.channel.curve import Curve
    from swiftspec.engine.cluster.nodes import free_ports
    from swiftspec.engine.cluster.rendezvous import NodeFacts, meet
    from swiftspec.engine.process.run_folder import run_folder

    curve = Curve.derived(options.read_secret())
    with meet(rendezvous, curve) as meeting, run_folder() as folder:
        own = NodeFacts(
            rank=rendezvous.rank,
            num_nodes=rendezvous.num_nodes,
            version=__version__,
            plan_sha256=file_sha256(source),
            address=meeting.own_address,
            folder=str(folder),
            host=rendezvous.host_rank,
            num_devices=num_devices_here(plan.device),
            ports=free_ports(meeting.own_address, _NUM_PORTS),
        )
        yield _Joined(meeting=meeting, own=own, curve=curve)


@contextmanager
def node_executor(
    options: NodeOptions, rendezvous: "Rendezvous", plan: Plan, candidate: Candidate, *, source: Path
) -> Iterator["ClusterExecutor"]:
    """All nodes as one executor for a candidate's engine. ValueError if they do not find each other, or do not fit."""
    from swiftspec.engine.cluster.nodes import lead, shares

    if rendezvous.is_process:
        owned = _ranks(candidate, rendezvous, plan)
    else:
        owned = shares(plan.num_devices, rendezvous.num_nodes)
    with (
        _joined(options, rendezvous, plan, source) as joined,
        lead(joined.meeting, joined.own, owned, joined.curve) as executor,
    ):
        yield executor


def _ranks(candidate: Candidate, rendezvous: "Rendezvous", plan: Plan) -> list[tuple[int, ...]]:
    """Devices of each process under torchrun: of each rank of the candidate, the target's first."""
    from swiftspec.engine.process.placement import worker_specs

    tp_groups = worker_specs(
        candidate.groups,
        candidate.ranks,
        target_groups=candidate.build().target_groups,
        device="cuda" if plan.device == "cuda" else "cpu",
    )
    owned = [worker_spec.devices for tp_group in tp_groups for worker_spec in tp_group]
    if len(owned) != rendezvous.num_nodes:
        raise ValueError(
            f"torchrun started {rendezvous.num_nodes} processes; {candidate.describe()} has {len(owned)} ranks: "
            "expected one process for each rank"
        )
    return owned


def join(options: NodeOptions, rendezvous: "Rendezvous", plan: Plan, *, source: Path) -> None:
    """Work of any node but 0: compute for node 0 until it ends. EngineError if node 0 is lost."""
    from swiftspec.engine.cluster.agent import serve
    from swiftspec.engine.process.interrupts import interrupts_noted

    with ExitStack() as stack:
        joined = stack.enter_context(_joined(options, rendezvous, plan, source))
        if rendezvous.is_process:  # from now on: Ctrl-C goes to all processes, and is node 0's to handle
            stack.enter_context(interrupts_noted())
        console.note(f"node {rendezvous.rank} of {rendezvous.num_nodes}: working for node 0 at {rendezvous.endpoint}")
        serve(
            joined.meeting,
            joined.own,
            joined.curve,
            models=(plan.target, plan.draft),
            device="cuda" if plan.device == "cuda" else "cpu",
        )


def secret(*, out: Path) -> None:
    """Write a new secret."""
    from swiftspec.engine.channel.curve import write_secret

    check_outputs(out=out)
    write_secret(out)
    console.note(f"{out}: a new secret, for --secret on every node; keep it private")
