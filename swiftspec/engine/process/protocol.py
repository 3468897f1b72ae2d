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

__all__ = [
    "Cancel",
    "Command",
    "CommitReport",
    "EndReport",
    "FailureReport",
    "Fault",
    "Generate",
    "ReadyReport",
    "Report",
    "RequestReport",
    "ScoreReport",
    "Setup",
    "cores_of",
    "name_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a worker process.

    role: role whose program it runs or computes for.
    group: its number among the groups of its role.
    rank, size: its rank in the TP group that computes the group's models together, and the group's size. Rank 0 leads.
    tp_group: meeting place of a TP group of several ranks: `file:///path` or `tcp://host:port/name`.
    models: by role; both if the policy is co-located.
    elsewhere: the model in the other role's process, if the draft is a head: it has its target's embedding and output
        matrix, and the target notes what it reads.
    tenants: directories of the target's fine-tunes and adapters, numbered from 1.
    devices: cores, numbered among those that the process may use, or the one GPU.
    device: "cpu" or "cuda". Kind of the devices.
    channels: rank 0 only: address of the channel to every group of the other role; the target's end binds.
    max_context, tree_slots: capacity of a sequence's caches.
    max_running: requests at once; each has a sequence.
    batch: limits of a step.
    steering: what decides how much is drafted and verified, in a target's process.
    vocab_size: size of the target's vocabulary; a draft's may be padded to another size.
    report_every_s: CommitReport tokens are reported at most this often; the first ones of a request, and its end, at
        once.
    curve: keys of connections over a network; None if the whole engine is on the launcher's machine.
    silent: for measurements: the TP group's ranks neither sum nor gather, see `NoOpTPGroup`.
    """

    role: Role
    group: int
    rank: int
    size: int
    tp_group: str
    models: Mapping[Role, ModelRef]
    devices: tuple[int, ...]
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

    @property
    def is_remote(self) -> bool:
        """Whether the process is on another machine than the launcher, or may be."""
        return self.curve is not None

    @property
    def num_threads(self) -> int:
        """Torch's threads; launching kernels needs one."""
        return len(self.devices) if self.device == "cpu" else 1

    @property
    def name(self) -> str:
        """Name for messages: `target`, or `target rank 1` in a TP group."""
        return name_of(self.role, self.group, self.rank, self.size)


def name_of(role: Role, group: int, rank: int, size: int) -> str:
    """Name of a process, for messages."""
    return f"{role}" + (f" group {group}" if group else "") + (f" rank {rank}" if size > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Run this role's program for one request. Sent to the leaders of TP groups.

    number: number of these programs of the request, ascending: by it peers tell its messages from those of others.
    patience_s: longest that a target waits for its draft before it decodes alone.
    alone: to a target: the draft is known to be gone. To a draft: the request is running without it.
    fallback: policy of the target while it is alone.
    peers: groups of the other role that it exchanges messages with, in the order in which programs count them.
    tpot_s: the request's limit on the time per token.
    tenant: number of the tenant of the target; 0 is the target itself.
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


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """Models are loaded. tenant_bytes: what the weights of each tenant take in addition to the target's."""

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
Report = ReadyReport | RequestReport | FailureReport


def cores_of(setup: Setup) -> tuple[int, ...]:
    """Cores of a process among those that this one may use: its devices, or all if a GPU computes."""
    available = tuple(sorted(os.sched_getaffinity(0)))
    return tuple(available[number] for number in setup.devices) if setup.device == "cpu" else available
