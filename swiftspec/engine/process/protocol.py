"""Messages between the launcher and the engine's processes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from swiftspec.devices.local import Device
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Candidates, Role
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.timing.timeline import Span


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A process, and its devices.

    role: whose program it runs or computes for. group: its number among the groups of its role. rank, size: in the TP
    group that computes the group's models together; rank 0 leads. devices: cores, numbered among those that the process
    may use, or the one GPU.
    """

    role: Role
    group: int
    rank: int
    size: int
    devices: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name for messages: `target`, or `target rank 1` in a TP group."""
        group, rank = f" group {self.group}" if self.group else "", f" rank {self.rank}" if self.size > 1 else ""
        return f"{self.role}{group}{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(WorkerSpec):
    """Setup of a worker process.

    tp_group: meeting place of a TP group of several ranks: `file:///path` or `tcp://host:port/name`.
    elsewhere: the model in the other role's process, if the draft is a head: it has its target's embedding and output
        matrix, and the target notes what it reads.
    tenants: directories of the target's fine-tunes and adapters, numbered from 1.
    channels: rank 0 only: address of the channel to every group of the other role; the target's end binds.
    max_context, tree_slots: capacity of a sequence's caches, of which each of `max_running` requests has one.
    steering: what decides how much is drafted and verified, in a target's process.
    vocab_size: size of the target's vocabulary; a draft's may be padded to another size.
    report_every_s: CommitReport tokens are reported at most this often; the first ones of a request, and its end, at
        once.
    curve: keys of connections over a network; None if the whole engine is on the launcher's machine.
    silent: for measurements: the TP group's ranks neither sum nor gather, see `NoOpTPGroup`.
    """

    tp_group: str
    models: Mapping[Role, ModelRef]
    device: Device
    channels: tuple[str, ...]
    vocab_size: int
    max_context: int
    tree_slots: int
    elsewhere: Mapping[Role, ModelRef] = field(default_factory=dict)
    max_running: int = 1
    batch: BatchLimits = field(default_factory=BatchLimits)
    tenants: tuple[str, ...] = ()
    steering: Steering | None = None
    report_every_s: float = 0.0
    curve: Curve | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Run this role's program for one request. Sent to the leaders of TP groups.

    number: number of these programs of the request, ascending: by it peers tell its messages from those of others.
    patience_s, fallback: as of `DraftRecovery`.
    alone: to a target: the draft is known to be gone. To a draft: the request is running without it.
    peers: groups of the other role that it exchanges messages with, in the order in which programs count them.
    tpot_s, tenant: as of `Task`.
    """

    number: int
    policy: Policy
    request: Request
    sampler: Sampler
    patience_s: float
    alone: bool
    fallback: Policy
    peers: tuple[int, ...] = ()
    tpot_s: float | None = None
    tenant: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the program of a request wherever it stands. `EndReport` answers it, unless the program had ended before."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process of the engine that has loaded its models, the cores it may use, and its device.

    group: its target group, if there are several. node: where its id and cores count; empty for the launcher's machine.
    tenant_bytes: memory that the weights of each tenant take in addition to the target's.
    """

    role: Role
    group: int
    rank: int
    node: str = ""
    pid: int
    cores: tuple[int, ...]
    device: str
    tenant_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitReport:
    """Tokens for the user."""

    number: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Log-probs of the next tokens of a prompt, or of the next commit, and the likeliest tokens in their places."""

    number: int
    log_probs: tuple[float, ...]
    candidates: tuple[Candidates, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in a program: a sentence for whoever asked, and a traceback for the log."""

    sentence: str
    trace: str


@dataclass(frozen=True, slots=True)
class EndReport:
    """The program of request `number` has ended.

    losses: how often it lost its peer during the request. alone_s: seconds without it. rows_asked: rows of all its
    verifications, some of which a full step may not have granted. fault: the error that ended it, if one did.
    """

    number: int
    spans: list[Span]
    losses: int = 0
    alone_s: float = 0.0
    rows_asked: int = 0
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The process cannot go on: `sentence` for the user, and a traceback for the log if the fault is ours."""

    sentence: str
    is_user_error: bool
    trace: str = ""


Command = Generate | Cancel
RequestReport = CommitReport | ScoreReport | EndReport
Report = ProcessInfo | RequestReport | FailureReport


def cores_of(setup: Setup) -> tuple[int, ...]:
    """Cores of a process among those that this one may use: its devices, or all if a GPU computes."""
    available = tuple(sorted(os.sched_getaffinity(0)))
    return tuple(available[number] for number in setup.devices) if setup.device == "cpu" else available
