"""Search options: all inputs of a search except the profile and the trace."""

from dataclasses import dataclass, field, replace

from swiftspec.artifacts.goal import split_devices
from swiftspec.artifacts.plan import Goal, Objective
from swiftspec.errors import FieldError
from swiftspec.models.names import unknown
from swiftspec.planner.load import Load, check_divisible
from swiftspec.policies import Layout, policy_class, policy_names

ALL = "all"  # policies, those that were never near the best among them


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Goal of a search, restrictions on what it may choose, and where simulations run.

    Parameters
    ----------
    policy : str, optional
        Plan for this policy alone, or for every one if it is `all`. Without, for those that were near the best of some
        plan (`Policy.searched`).
    goal : Goal
        Objective, and limits.
    degrees : frozenset of int, optional
        Allowed TP degrees; any if not given.
    ranks : int, optional
        On a CPU, only groups of N processes, where N divides the group.
    seed : int
        The same seed and inputs give the same plan, whatever `num_jobs`.
    num_jobs : int
        Processes that simulate; -1 for one per core.
    backend : str, optional
        Backend of the simulations: `loky` (here), or an existing cluster of `dask` or `ray`.
    load : Load, optional
        Many requests to plan for; one request at a time if not given.
    fleet : int, optional
        Devices that equal replicas may use together to serve the load; one replica serves all of it if not given.

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
    load: Load | None = None
    fleet: int | None = None

    def __post_init__(self) -> None:
        if self.load is not None:
            object.__setattr__(self, "load", replace(self.load, goal=self.goal))

    def check(self, *, num_devices: int) -> None:
        """ValueError, naming the field, for options that cannot be searched on `num_devices` devices."""
        from swiftspec.planner.search.backends import check_backend

        if num_devices < 1:
            raise FieldError("num_devices", num_devices, "expected at least 1")
        if self.num_jobs < 1 and self.num_jobs != -1:
            raise FieldError("num_jobs", self.num_jobs, "expected at least 1, or -1 for one per core")
        if self.backend is not None:
            check_backend(self.backend)
        self._check_goal(num_devices)
        for split in self.goal.splits:
            if (needed := split_devices(split)) > num_devices:
                raise FieldError("split", f"{split}, which takes {needed} devices", f"expected at most {num_devices}")
        if self.fleet is not None:
            self._check_fleet(self.fleet)
        if self.policy is None or self.policy == ALL:
            return
        if self.policy not in (names := policy_names()):
            raise unknown("policy", self.policy, ("auto", ALL, *names))
        if policy_class(self.policy).layout is Layout.DISAGGREGATED and num_devices < 2:
            raise FieldError(
                "policy",
                f"{self.policy}, which is disaggregated: its roles need 2 devices, not {num_devices}",
            )

    def _check_goal(self, num_devices: int) -> None:
        most = self.goal.max_devices
        if most is not None and most > num_devices:
            raise FieldError("max_devices", most, f"there are {num_devices}, and this limit only leaves some idle")
        if self.load is None and self.goal.percentile is not None:
            raise FieldError("percentile", f"{self.goal.percentile:g}", "it needs a workload")
        if self.load is not None and self.goal.objective is not Objective.TOKENS_PER_S:
            raise FieldError("objective", self.goal.objective, "with a workload the objective is goodput")

    def _check_fleet(self, num_devices: int) -> None:
        if num_devices < 1:
            raise FieldError("fleet", num_devices, "expected at least 1 device")
        if self.load is None:
            raise FieldError("fleet", num_devices, "it needs a workload")
        if self.load.transfer_s is not None:
            raise FieldError("transfer_ms", f"{self.load.transfer_s * 1e3:g}", "fleets read their prompts themselves")
        check_divisible(self.load.workload)
        if not self.load.goal.is_limited:
            raise FieldError(
                "fleet",
                f"{num_devices}, but there are no limits to keep: neither ttft_s nor tpot_s is given, and no "
                "class of the workload has one",
            )
