"""Searches for one request at a time; the choice for a load starts from what they have found."""

from collections import Counter
from dataclasses import dataclass, field

from swiftspec.artifacts.profile import Profile
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.decision import Decision, KnownErrors, OutOfReachError, decide
from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.simulations import LastRung, RankedOption, Simulations
from swiftspec.planner.search.stages import UNTRIED, search_in_stages


@dataclass(slots=True, kw_only=True)
class Searches:
    """Searches among the options on at most N devices; later searches reuse the simulations of earlier ones.

    options: all feasible ones.
    policy: choose one of this policy's options.
    memory: tells how many requests' caches a candidate's devices hold; unlimited if None.
    num_jobs: processes.
    widest: the last rung of the first search, which knows every split. decision: the choice for one request.
    """

    profile: Profile
    simulations: Simulations
    options: list[Option]
    policy: str | None
    errors: KnownErrors
    memory: MemoryModel | None
    num_jobs: int
    widest: LastRung = field(init=False)
    decision: Decision = field(init=False)
    _num_searches: int = 0
    _rejected: Counter[str] = field(default_factory=Counter)

    def fastest(self, most_devices: int) -> Decision:
        """The best on at most this many devices. OutOfReachError if nothing meets the goal's limits."""
        options = [option for option in self.options if option.num_devices <= most_devices]
        if not any(self.policy in (None, option.policy.name) for option in options):
            raise OutOfReachError(f"nothing is feasible on {most_devices} devices")
        self._rejected = Counter()
        closed = ClosedForms(self.profile, self.simulations.trace)
        finals = search_in_stages(self.simulations, options, closed, self._rejected, policy=self.policy)
        if not self._num_searches:
            self.widest = finals
        self._num_searches += 1
        self.decision = decide(self.simulations, finals, self.policy, self.errors)
        return self.decision

    def fewest(self, most_devices: int) -> Decision:
        """The fastest option on the fewest devices with which any option meets the limits.

        An option that meets them on some devices does so on more, so bisection would do; the first search, which covers
        every split, gives a better guess.

        OutOfReachError if nothing meets the limits on all devices.
        """
        best = self.fastest(most_devices)
        least = 1
        while least < (devices := best.chosen.option.num_devices):
            able = {found.option.num_devices for found in self.ranking() if found.reach(self.simulations.goal) >= 1}
            guess = min((count for count in able if least <= count < devices), default=devices - 1)
            try:
                best = self.fastest(guess)
            except OutOfReachError:
                least = guess + 1
        return best

    def ranking(self) -> list[RankedOption]:
        """The best of every policy on every split, by all simulations."""
        finalists = [self.decision.chosen, *self.decision.others]
        return self.simulations.ranking(finalists, self.widest.expected)

    @property
    def rejected(self) -> Counter[str]:
        """Options that were not simulated, counted by reason."""
        if self._num_searches == 1:
            return self._rejected
        tried = self.simulations.simulated
        return Counter(f"{option.policy.name}: {UNTRIED}" for option in self.options if option.key not in tried)
