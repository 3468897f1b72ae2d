"""Closed forms: what is known without simulating. Oracles for the tests, bounds for the planner. Standard library only.

Where acceptance is a probability it is independent and identical at every position, and a verification's time does not
depend on its rows. Bounds on a recorded trace assume neither.
"""

import heapq
import math
from collections.abc import Sequence

__all__ = [
    "best_chain",
    "best_tree_tokens",
    "chain_tokens",
    "fewest_rounds",
    "serial_round_s",
    "serial_speedup",
]


def chain_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Tokens per round of a chain, bonus included: (1 - a^(k+1)) / (1 - a)."""
    if acceptance == 1:
        return float(num_draft_tokens + 1)
    return float((1 - acceptance ** (num_draft_tokens + 1)) / (1 - acceptance))


def serial_round_s(*, expansions: int, expand_s: float, verify_s: float) -> float:
    """A round of a serial policy: nothing overlaps."""
    return expansions * expand_s + verify_s


def serial_speedup(acceptance: float, num_draft_tokens: int, *, cost_ratio: float) -> float:
    """Serial chain over autoregressive decoding, where a target forward costs `cost_ratio` draft forwards."""
    return chain_tokens(acceptance, num_draft_tokens) * cost_ratio / (num_draft_tokens + cost_ratio)


def best_chain(acceptance: float, *, cost_ratio: float, longest: int = 64) -> int:
    """The number of draft tokens that makes a serial chain fastest."""
    lengths = range(1, longest + 1)
    return max(lengths, key=lambda length: serial_speedup(acceptance, length, cost_ratio=cost_ratio))


def best_tree_tokens(rank_acceptance: Sequence[float], num_nodes: int, *, max_depth: float = math.inf) -> float:
    """Tokens per round of the best static tree (Sequoia, arXiv 2402.12374): the sum of its nodes' probabilities.

    Probabilities fall along a path, so taking nodes best first keeps the tree connected, and no tree of as many nodes
    is better. No policy has more tokens per round on such a trace.

    Parameters
    ----------
    rank_acceptance : sequence of float
        Probability that the target's token is a node's first child, second, ...
    num_nodes : int
        Root included; `max_depth` counts the levels below it.
    """
    heap = [(-1.0, 0)]
    tokens = 0.0
    for _ in range(num_nodes):
        if not heap:
            break
        negative, depth = heapq.heappop(heap)
        tokens -= negative
        if depth < max_depth:
            for share in rank_acceptance:
                heapq.heappush(heap, (negative * share, depth + 1))
    return tokens


def fewest_rounds(ranks: Sequence[int], *, verify_rows: int, num_candidates: int) -> int:
    """Verifications below which no policy gets through a traced output, whatever its draft has time for.

    To accept a token of rank r, a best subtree holds it and its r better siblings; so the accepted tokens of a round
    have sum(rank + 1) <= verify_rows - 1. Then the bonus token follows, of any rank. A round that starts later in the
    output never ends earlier, so advancing as far as possible every time needs the fewest rounds.

    Parameters
    ----------
    ranks : sequence of int
        Rank of the target's token among the draft's, at every output position.
    verify_rows, num_candidates : int
        Rows of a verification, the root included; children per node.
    """
    rounds = position = 0
    while position < len(ranks):
        room = verify_rows - 1
        for rank in ranks[position : position + room]:
            room -= rank + 1
            if rank >= num_candidates or room < 0:
                break
            position += 1
        position += 1
        rounds += 1
    return rounds
