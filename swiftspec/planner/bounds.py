"""Speeds in closed form: an optimistic one rules options out, a plausible one says which to simulate first."""

from functools import cache

from swiftspec.acceptance import AcceptanceTrace
from swiftspec.planner.space import Option
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.profile import Profile
from swiftspec.simulator.closed_forms import best_tree_tokens, fewest_rounds, serial_round_s
from swiftspec.timeline import Phase

__all__ = ["ClosedForms"]


class ClosedForms:
    """Tokens/s of speculative options over a trace's prompts. Prefill, host work and messages count as free.

    Both speeds use the shortest round: a verification at the shortest context, and behind all of its expansions where
    nothing overlaps; mean latencies, the lower of idle and busy peers. Several target groups verify at once.
    """

    def __init__(self, profile: Profile, trace: AcceptanceTrace) -> None:
        self._profile = profile
        self._ranks = [prompt.ranks.tolist() for prompt in trace.prompts]
        self._num_tokens = trace.num_tokens
        self._context = min(prompt.prompt_length for prompt in trace.prompts) - 1
        self._num_recorded = max(prompt.draft.num_candidates for prompt in trace.prompts)
        self._rank_acceptance = trace.rank_acceptance(self._num_recorded)
        self._fewest_rounds = cache(self._count_fewest_rounds)
        self._mean_s = cache(self._lowest_mean_s)

    def bound(self, option: Option) -> float:
        """No option is faster: the fewest rounds that the trace allows, each the shortest possible.

        Infinite without a draft, or with a fuzzy one, whose ranks are not recorded; such options are quick to simulate.
        """
        policy = option.policy
        if policy.layout is Layout.TARGET_ONLY or policy.fuzzy:
            return float("inf")
        rounds = self._fewest_rounds(policy.target_rows, self._num_candidates(policy))
        return self._num_tokens / (rounds * self._round_s(option, rows=policy.least_target_rows))

    def estimate(self, option: Option) -> float:
        """Plausible: the best static tree, were positions independent. Neither bound nor prediction."""
        policy = option.policy
        round_s = self._round_s(option, rows=policy.target_rows)
        if policy.layout is Layout.TARGET_ONLY:
            return 1 / round_s
        ranks = self._rank_acceptance[: self._num_candidates(policy)]
        tokens = best_tree_tokens(ranks, policy.target_rows, max_depth=policy.serial_forwards or float("inf"))
        return tokens / round_s

    def _num_candidates(self, policy: Policy) -> int:
        return min(self._num_recorded, policy.num_candidates)

    def _round_s(self, option: Option, *, rows: int) -> float:
        policy = option.policy
        halves = (Phase.EXIT, Phase.FINISH) if policy.exits else (Phase.VERIFY,)
        verify_s = sum(self._forward_s(option, phase, Role.TARGET, rows) for phase in halves) / policy.target_groups
        if not policy.serial_forwards:
            return verify_s
        kinds = (Phase.EXPAND, Phase.FUZZY) if policy.fuzzy else (Phase.EXPAND,)
        expand_s = min(self._forward_s(option, phase, Role.DRAFT, 1) for phase in kinds)
        return serial_round_s(expansions=policy.serial_forwards, expand_s=expand_s, verify_s=verify_s)

    def _forward_s(self, option: Option, phase: Phase, role: Role, rows: int) -> float:
        may_be_busy = option.policy.layout is Layout.DISAGGREGATED
        return self._mean_s(phase, role, option.degree(role), rows, may_be_busy)

    def _lowest_mean_s(self, phase: Phase, role: Role, degree: int, rows: int, may_be_busy: bool) -> float:
        latencies = [
            self._profile.step(phase, role=role, degree=degree, peer_busy=busy, rows=rows, context=self._context)
            for busy in ((False, True) if may_be_busy else (False,))
        ]
        return min(latency.mean_s for latency in latencies)

    def _count_fewest_rounds(self, verify_rows: int, num_candidates: int) -> int:
        return sum(
            fewest_rounds(ranks, verify_rows=verify_rows, num_candidates=num_candidates) for ranks in self._ranks
        )
