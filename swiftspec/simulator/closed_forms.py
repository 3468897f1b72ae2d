"""Closed-form speeds, without simulation."""

import math
from collections.abc import Sequence

from swiftspec.policies.trees.sequoia import static_tree

__all__ = ["best_tree_tokens", "fewest_rounds", "serial_round_s"]


def serial_round_s(*, expansions: int, expand_s: float, verify_s: float) -> float:
    """Duration of a serial policy's round: nothing overlaps."""
    return expansions * expand_s + verify_s


def best_tree_tokens(rank_acceptance: Sequence[float], num_nodes: int, *, max_depth: float = math.inf) -> float:
    """Tokens per round of the best static tree: the sum of its nodes' probabilities, root included.

    No policy has more tokens per round where positions are independent.

    Parameters
    ----------
    rank_acceptance : sequence of float
        Probability that the target's token is a node's first child, second, ...
    num_nodes : int
        Root included; `max_depth` counts the levels below it.
    """
    return sum(node.probability for node in static_tree(tuple(rank_acceptance), num_nodes, max_depth))


def fewest_rounds(ranks: Sequence[int], *, verify_rows: int, num_candidates: int) -> int:
    """Lower bound of the verifications that any policy needs for a traced output, however fast its draft is.

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
