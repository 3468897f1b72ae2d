"""Closed-form speeds: plausible estimates, which say what to simulate first."""

import math
from functools import cache

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.search.option import Option
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.policies.trees.sequoia import static_tree
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase


@cache
def best_tree_tokens(rank_acceptance: tuple[float, ...], num_nodes: int, max_depth: float = math.inf) -> float:
    """Tokens per round of the best static tree: no policy has more where positions are independent.

    rank_acceptance: probability that the target's token is a node's first child, second, ... num_nodes: root included;
    `max_depth` counts the levels below it.
    """
    return sum(node.probability for node in static_tree(rank_acceptance, num_nodes, max_depth))


class StepTimes:
    """Seconds of an option's steps for one request: of mean latency, the lower of idle and busy peers.

    context: tokens in the cache.
    """

    def __init__(self, profile: Profile, context: int) -> None:
        self._profile = profile
        self._context = context
        self._mean_s = cache(self._lowest_mean_s)

    def rows(self, policy: Policy) -> int:
        return policy.target_rows

    def verify_s(self, option: Option, *, rows: int) -> float:
        """Of a verification; several target groups verify at once."""
        halves = (Phase.EXIT, Phase.FINISH) if option.policy.exits else (Phase.VERIFY,)
        whole_s = sum(self.forward_s(option, phase, Role.TARGET, rows=rows) for phase in halves)
        return whole_s / option.policy.target_groups

    def expand_s(self, option: Option, *, rows: int) -> float:
        """Of a draft forward."""
        kinds = (Phase.EXPAND, Phase.FUZZY) if option.policy.fuzzy else (Phase.EXPAND,)
        return min(self.forward_s(option, phase, Role.DRAFT, rows=rows) for phase in kinds)

    def forward_s(self, option: Option, phase: Phase, role: Role, *, rows: int) -> float:
        """Of a forward. rows: of each request."""
        return self._mean_s(phase, role, option.degree(role), option.num_ranks(role), rows, option.policy.layout)

    def _lowest_mean_s(self, phase: Phase, role: Role, degree: int, ranks: int, rows: int, layout: Layout) -> float:
        idle = StepKey(role, phase, degree, rows, self._context, ranks=ranks)
        keys = (idle, idle._replace(peer_busy=True)) if layout is Layout.DISAGGREGATED else (idle,)
        latencies = self._profile.latencies.of(role, layout)
        return min(latencies.step(key).mean_s for key in keys)


class ClosedForms:
    """Tokens/s of speculative options over a trace's prompts. Prefill, host work and messages count as free.

    Forwards are those at the shortest context.

    context: tokens in the cache before a forward.
    """

    def __init__(self, profile: Profile, trace: AcceptanceTrace) -> None:
        self.context = min(prompt.prompt_length for prompt in trace.prompts) - 1
        self._alone = StepTimes(profile, self.context)
        self._num_recorded = max(prompt.draft.num_candidates for prompt in trace.prompts)
        self._rank_acceptance = tuple(trace.rank_acceptance(self._num_recorded))

    def estimate(self, option: Option, times: StepTimes | None = None) -> float:
        """Plausible speed: the best static tree, were positions independent. Neither a bound nor a prediction.

        A round's tree is as deep as the round has sequential draft forwards, before its verification or during it.
        Where the draft never pauses these are as many as fit, and the tree has no more nodes than they have rows; a
        chain that is drafted ahead is drafted again if it was prepared for another outcome.

        times: of steps that other requests share; of one request's own if not given.
        """
        tokens, round_s = self.round(option, times)
        return tokens / round_s

    def round(self, option: Option, times: StepTimes | None = None) -> tuple[float, float]:
        """Tokens and seconds of a round, as `estimate` has them."""
        policy, times = option.policy, times or self._alone
        rows = times.rows(policy)
        verify_s = times.verify_s(option, rows=rows)
        if policy.layout is Layout.TARGET_ONLY:
            return 1.0, verify_s
        expand_s = times.expand_s(option, rows=policy.expand_rows)
        depth: float
        if policy.layout is Layout.COLOCATED or policy.serial_forwards:
            round_s = policy.serial_forwards * expand_s + verify_s  # nothing overlaps
            depth = policy.draft_levels
        elif depth := policy.chain_tokens:
            beside_s = times.forward_s(option, Phase.FINISH, Role.TARGET, rows=rows) if policy.exits else verify_s
            chain_s = depth * expand_s
            round_s = verify_s + max(0.0, chain_s - beside_s) + (1 - self._prepared(policy)) * chain_s
        else:
            depth, round_s = max(1.0, verify_s / expand_s), max(verify_s, expand_s)
            rows = min(rows, 1 + math.ceil(depth * policy.expand_rows))
        return self._tokens_per_round(policy, rows, depth), round_s

    def _tokens_per_round(self, policy: Policy, rows: int, depth: float) -> float:
        """Tokens per round at a fractional depth, interpolated linearly between whole depths."""
        whole = math.floor(depth)
        shares = self._rank_acceptance[: min(self._num_recorded, policy.num_candidates)]
        least, most = (best_tree_tokens(shares, rows, whole + more) for more in (0, 1))
        return least + (depth - whole) * (most - least)

    def _prepared(self, policy: Policy) -> float:
        """Probability of the outcome a chain was drafted for: all accepted, or one of the prepared branches."""
        chain = policy.chain_tokens
        branches = policy.expand_rows // (chain + 1)
        return max(self._rank_acceptance[0] ** chain, sum(self._rank_acceptance[:branches]))
