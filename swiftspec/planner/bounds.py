"""Closed-form speeds: an upper bound rules options out, a plausible estimate says which to simulate first."""

import math
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.plan import Goal
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.timeline import Phase
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.goals import score
from swiftspec.planner.option import Option
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.closed_forms import best_tree_tokens, fewest_rounds, serial_round_s

__all__ = ["ClosedForms"]

_ALMOST_NONE = 1e-9
_MOST_ROWS = BatchLimits().max_rows  # of a step that requests share


class ClosedForms:
    """Tokens/s of speculative options over a trace's prompts. Prefill, host work and messages count as free.

    Forwards are those at the shortest context, of mean latency, the lower of idle and busy peers. Several target groups
    verify at once.
    """

    def __init__(self, profile: Profile, trace: AcceptanceTrace) -> None:
        self._profile = profile
        self._ranks = [prompt.ranks.tolist() for prompt in trace.prompts]
        self._tokens = np.array([len(ranks) for ranks in self._ranks])
        self._context = min(prompt.prompt_length for prompt in trace.prompts) - 1
        self._num_recorded = max(prompt.draft.num_candidates for prompt in trace.prompts)
        self._rank_acceptance = trace.rank_acceptance(self._num_recorded)
        self._fewest_rounds = cache(self._count_fewest_rounds)
        self._mean_s = cache(self._lowest_mean_s)
        self._tree_tokens = cache(self._best_tree_tokens)

    def bound(self, option: Option) -> float:
        """Upper bound of an option's speed: the fewest rounds that the trace allows, each the shortest possible.

        Infinite without a draft, or with a fuzzy one, whose ranks are not recorded; such options are quick to simulate.
        """
        if self._is_unbounded(option.policy):
            return float("inf")
        return float(self._tokens.sum() / (self._bounding_rounds(option).sum() * self._shortest_round_s(option)))

    def bound_of_score(self, option: Option, goal: Goal) -> float:
        """Upper bound of the option's score: as `bound`; the first commit takes a round, later ones the rest."""
        if self._is_unbounded(option.policy):
            return float("inf")
        rounds, round_s = self._bounding_rounds(option), self._shortest_round_s(option)
        most = score(
            goal,
            tokens=self._tokens,
            request_s=rounds * round_s,
            tpot_s=np.maximum(rounds - 1, _ALMOST_NONE) * round_s / np.maximum(self._tokens - 1, 1),
            num_devices=option.num_devices,
        )
        return float(most)

    def estimate(self, option: Option, *, sequences: int = 1) -> float:
        """Plausible speed: the best static tree, were positions independent. Neither a bound nor a prediction.

        A round's tree is as deep as the round has sequential draft forwards, before its verification or during it.
        Where the draft never pauses these are as many as fit, and the tree has no more nodes than they have rows; a
        chain that is drafted ahead is drafted again if it was prepared for another outcome.

        sequences: requests that share every step; the speed is that of each, and they share a step's rows, too.
        """
        policy = option.policy
        rows = min(policy.target_rows, max(1, _MOST_ROWS // sequences)) if policy.elastic else policy.target_rows
        verify_s = self._verify_s(option, rows=rows, sequences=sequences)
        if policy.layout is Layout.TARGET_ONLY:
            return 1 / verify_s
        expand_s = self._expand_s(option, rows=policy.expand_rows, sequences=sequences)
        depth: float = policy.serial_forwards
        if policy.layout is Layout.COLOCATED:
            round_s = serial_round_s(expansions=policy.serial_forwards, expand_s=expand_s, verify_s=verify_s)
            # A parallel draft knows several levels after one forward.
            depth = max(depth, policy.chain_tokens, getattr(policy, "num_masks", 0) + 1)
        elif depth := policy.chain_tokens:
            round_s = self._ahead_s(option, verify_s, chain_s=depth * expand_s, rows=rows, sequences=sequences)
        else:
            depth, round_s = max(1.0, verify_s / expand_s), max(verify_s, expand_s)
            rows = min(rows, 1 + math.ceil(depth * policy.expand_rows))
        return self._tokens_per_round(policy, rows, depth) / round_s

    def _tokens_per_round(self, policy: Policy, rows: int, depth: float) -> float:
        """Tokens per round at a fractional depth, interpolated linearly between whole depths."""
        whole = math.floor(depth)
        least, most = (self._tree_tokens(self._num_candidates(policy), rows, whole + more) for more in (0, 1))
        return least + (depth - whole) * (most - least)

    def _ahead_s(self, option: Option, verify_s: float, *, chain_s: float, rows: int, sequences: int) -> float:
        """Time of a round during which the next chain is drafted, from the exit on if the exit shows its root."""
        policy = option.policy
        beside_s = verify_s
        if policy.exits:
            beside_s = self._forward_s(option, Phase.FINISH, Role.TARGET, rows, sequences)
        return verify_s + max(0.0, chain_s - beside_s) + (1 - self._prepared(policy)) * chain_s

    def _prepared(self, policy: Policy) -> float:
        """Probability of the outcome a chain was drafted for: all accepted, or one of the prepared branches."""
        chain = policy.chain_tokens
        branches = policy.expand_rows // (chain + 1)
        return max(self._rank_acceptance[0] ** chain, sum(self._rank_acceptance[:branches]))

    def _is_unbounded(self, policy: Policy) -> bool:
        return policy.layout is Layout.TARGET_ONLY or policy.fuzzy

    def _bounding_rounds(self, option: Option) -> npt.NDArray[np.float64]:
        return self._fewest_rounds(option.policy.target_rows, self._num_candidates(option.policy))

    def _num_candidates(self, policy: Policy) -> int:
        return min(self._num_recorded, policy.num_candidates)

    def _shortest_round_s(self, option: Option) -> float:
        """Time of a verification of the fewest rows, after all of its expansions where nothing overlaps."""
        policy = option.policy
        verify_s = self._verify_s(option, rows=policy.least_target_rows)
        if not policy.serial_forwards:
            return verify_s
        expand_s = self._expand_s(option, rows=1)
        return serial_round_s(expansions=policy.serial_forwards, expand_s=expand_s, verify_s=verify_s)

    def _verify_s(self, option: Option, *, rows: int, sequences: int = 1) -> float:
        halves = (Phase.EXIT, Phase.FINISH) if option.policy.exits else (Phase.VERIFY,)
        steps = math.ceil(sequences * rows / _MOST_ROWS)  # what does not fit into a step is in the next one
        at_once = math.ceil(sequences / steps)
        whole_s = sum(self._forward_s(option, phase, Role.TARGET, rows, at_once) for phase in halves)
        return steps * whole_s / option.policy.target_groups

    def _expand_s(self, option: Option, *, rows: int, sequences: int = 1) -> float:
        kinds = (Phase.EXPAND, Phase.FUZZY) if option.policy.fuzzy else (Phase.EXPAND,)
        steps = math.ceil(sequences * rows / _MOST_ROWS)
        at_once = math.ceil(sequences / steps)
        return steps * min(self._forward_s(option, phase, Role.DRAFT, rows, at_once) for phase in kinds)

    def _forward_s(self, option: Option, phase: Phase, role: Role, rows: int, sequences: int) -> float:
        """Seconds of a forward. rows: of each sequence."""
        may_be_busy = option.policy.layout is Layout.DISAGGREGATED
        degree, ranks = option.degree(role), option.num_ranks(role)
        mean_s = self._mean_s(phase, role, degree, ranks, sequences * rows, may_be_busy)
        if sequences == 1:
            return mean_s
        each_s, _ = self._profile.latencies.further_sequence(
            role, degree=degree, ranks=ranks, peer_busy=False, context=self._context
        )
        return mean_s + (sequences - 1) * each_s * (0.5 if phase in (Phase.EXIT, Phase.FINISH) else 1.0)

    def _lowest_mean_s(self, phase: Phase, role: Role, degree: int, ranks: int, rows: int, may_be_busy: bool) -> float:
        step = partial(self._profile.step, phase, role=role, degree=degree, ranks=ranks, rows=rows)
        latencies = [
            step(peer_busy=busy, context=self._context) for busy in ((False, True) if may_be_busy else (False,))
        ]
        return min(latency.mean_s for latency in latencies)

    def _best_tree_tokens(self, num_candidates: int, verify_rows: int, depth: int) -> float:
        return best_tree_tokens(self._rank_acceptance[:num_candidates], verify_rows, max_depth=depth)

    def _count_fewest_rounds(self, verify_rows: int, num_candidates: int) -> npt.NDArray[np.float64]:
        """Fewest rounds of each prompt."""
        return np.array(
            [fewest_rounds(ranks, verify_rows=verify_rows, num_candidates=num_candidates) for ranks in self._ranks],
            np.float64,
        )
