"""Messages between the launcher and the engine's processes."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.timeline import Span
from swiftspec.devices.local import Device
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.model.sampler import Sampler
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Role

__all__ = ["Command", "Committed", "Failed", "Finished", "Generate", "Ready", "Report", "Setup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a worker process.

    Parameters
    ----------
    role : Role
        Whose program it helps to run.
    group : int
        Which of several target groups it belongs to; 0 otherwise.
    rank, size : int
        Its place in the TP group that computes the group's models together, and how many they are. Rank 0 leads.
    tp_group : str
        Where a TP group of several meets: `file:///path` or `tcp://host:port/name`.
    models : mapping
        By role; both where the policy is co-located.
    devices : tuple of int
        Cores, as numbered among those that the process may use, or the one GPU.
    device : "cpu" or "cuda"
        What the numbers in `devices` count.
    channels : tuple of str
        Address of the channel to every peer; the target's end binds. Of rank 0.
    max_context, tree_slots : int
        Room of the caches.
    curve : Curve or None
        Who may connect to channels over a network; never leaves its node.
    silent : bool
        To be measured: the TP group's ranks neither sum nor gather, see `NoOpTPGroup`.
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
    max_context: int
    tree_slots: int
    curve: Curve | None = None
    silent: bool = False

    @property
    def num_threads(self) -> int:
        """Of torch; what launches kernels is one."""
        return len(self.devices) if self.device == "cpu" else 1

    @property
    def name(self) -> str:
        """For a sentence: `target`, or `target rank 1` in a TP group."""
        group = f" group {self.group}" if self.group else ""
        return f"{self.role}{group}" + (f" rank {self.rank}" if self.size > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Run this role's program of one request. To the leaders of TP groups.

    Parameters
    ----------
    number : int
        Of the request, ascending: by it peers drop what an earlier one left behind.
    patience_s : float
        Longest that a target waits for its draft before it decodes on alone.
    alone : bool
        To a target: the draft is known not to be there. To a draft: the request is under way without it.
    fallback : Policy
        How the target decodes while it is alone.
    """

    number: int
    policy: Policy
    request: Request
    sampler: Sampler
    patience_s: float
    alone: bool
    fallback: Policy


@dataclass(frozen=True, slots=True)
class Ready:
    """Models are loaded."""

    pid: int
    cores: tuple[int, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens for the user, as they are known."""

    number: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The program of request `number` has ended. `losses`: how often it lost its peer meanwhile."""

    number: int
    spans: list[Span]
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """`sentence` for the user, or a traceback where the fault is ours."""

    sentence: str
    is_user_error: bool


Command = Generate | None  # None: stop what is running
Report = Ready | Committed | Finished | Failed
