"""Search options: what a search is told beside the profile and the trace."""

from dataclasses import dataclass, field

from swiftspec.artifacts.plan import Goal
from swiftspec.models.names import unknown
from swiftspec.policies import Layout, policy_class, policy_names

__all__ = ["SearchOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What `plan` searches for, what it chooses from, and where simulations run.

    Parameters
    ----------
    policy : str, optional
        Plan for this policy alone.
    goal : Goal
        What to be best at, and within which limits.
    degrees : frozenset of int, optional
        Numbers of devices that may divide a model; any if not given.
    ranks : int, optional
        On a CPU, only groups of so many processes, where they divide.
    seed : int
        The same seed and inputs give the same plan, whatever `num_jobs`.
    num_jobs : int
        Processes that simulate; -1 for one per core.
    backend : str, optional
        Where they run: `loky` (here), or an existing cluster of `dask` or `ray`.

    Examples
    --------
    >>> goal = swiftspec.Goal(objective="tokens-per-gpu")
    >>> swiftspec.SearchOptions(goal=goal, num_jobs=1).policy is None
    True
    """

    policy: str | None = None
    goal: Goal = field(default_factory=Goal)
    degrees: frozenset[int] | None = None
    ranks: int | None = None
    seed: int = 0
    num_jobs: int = -1
    backend: str | None = None

    def check(self, *, num_devices: int) -> None:
        """ValueError, naming the field, for what cannot be searched on so many devices."""
        from swiftspec.planner.backends import check_backend

        if self.num_jobs < 1 and self.num_jobs != -1:
            raise ValueError(f"num_jobs is {self.num_jobs}; expected at least 1, or -1 for one per core")
        if self.backend is not None:
            check_backend(self.backend)
        if self.policy is None:
            return
        if self.policy not in (names := policy_names()):
            raise unknown("policy", self.policy, ("auto", *names))
        if policy_class(self.policy).layout is Layout.DISAGGREGATED and num_devices < 2:
            raise ValueError(
                f"policy is {self.policy}, which is disaggregated: its roles need 2 devices, and "
                f"num_devices is {num_devices}"
            )
