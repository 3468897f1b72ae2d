"""What the launcher and a role's process say to each other, over a pipe that only the two of them hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftspec.documents import ModelRef
from swiftspec.engine.sampling import Sampler
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.timeline import Span

__all__ = ["Committed", "Failed", "Finished", "Generate", "Ready", "Setup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a process is: whose program it runs, which models it holds, on which cores; a channel to every peer.

    `rank` tells several target groups apart. `device` computes: the cores themselves (`cpu`), or a GPU (`cuda:N`).
    """

    role: Role
    rank: int
    models: Mapping[Role, ModelRef]
    cores: tuple[int, ...]
    channels: tuple[str, ...]
    max_context: int
    tree_slots: int
    device: str = "cpu"

    @property
    def num_threads(self) -> int:
        """Of torch; what launches kernels is one."""
        return len(self.cores) if self.device == "cpu" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Run this role's program of one request."""

    number: int
    policy: Policy
    request: Request
    sampler: Sampler


@dataclass(frozen=True, slots=True)
class Ready:
    """Models are loaded."""

    pid: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens for the user, as they are known."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The program has ended."""

    spans: list[Span]


@dataclass(frozen=True, slots=True)
class Failed:
    """`sentence` for the user, or a traceback where the fault is ours."""

    sentence: str
    is_user_error: bool
