"""Kinds of replicas: an option on its devices, alone or several targets that share drafts."""

from dataclasses import dataclass

from swiftspec.artifacts.plan import Candidate
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.option import Key, Option
from swiftspec.simulator.replica import Replicas

__all__ = ["Kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of replica.

    Parameters
    ----------
    option : Option
        Of one target and its draft.
    candidate : Candidate
        The same, with its prediction for a single request.
    num_targets : int
    num_drafts : int, optional
        Draft groups that the targets share; None without a pool.
    control : str
        Name of the control that decides how much is drafted, passed to simulations; none if empty.
    may_win : bool
        Whether it may be chosen; others are there to be compared with.
    """

    option: Option
    candidate: Candidate
    num_targets: int = 1
    num_drafts: int | None = None
    control: str = ""
    may_win: bool = True

    @property
    def key(self) -> tuple[Key, int, int | None, str]:
        """What identifies it."""
        return self.option.key, self.num_targets, self.num_drafts, self.control

    @property
    def num_devices(self) -> int:
        """Devices of one, all targets and drafts of a pool together."""
        return sum(self.group_sizes)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Devices of every group that a forward runs on."""
        sizes = [len(devices) for devices in self.option.groups.values()]
        copies = self.option.policy.target_groups
        targets = [sizes[0] // copies] * (copies * self.num_targets)
        return (*targets, *(sizes[1:] * (self.num_drafts or self.num_targets)))

    @property
    def replicas(self) -> Replicas:
        """As the simulation sees it."""
        return Replicas(num_targets=self.num_targets, num_drafts=self.num_drafts)

    @property
    def tokens_per_s(self) -> float:
        """Speed of a single request."""
        return self.candidate.prediction.metrics.figures.tokens_per_s

    def room(self, memory: MemoryModel | None, *, longest: int) -> int | None:
        """Cache blocks of a target that there is memory for, those of the longest request at least; None if unknown."""
        if memory is None:
            return None
        shared_by = self.num_targets / (self.num_drafts or self.num_targets)
        return memory.num_blocks(self.option, longest=longest, targets_per_draft=shared_by)
