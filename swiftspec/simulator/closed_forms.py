"""Closed forms: what is known without simulating. Oracles for the tests, bounds for the planner.

Where acceptance is a probability it is independent and identical at every position, and a verification's time does not
depend on its rows. Bounds on a recorded trace assume neither.
"""

import math
from collections.abc import Sequence

from swiftspec.policies.sequoia import static_tree

__all__ = [
    "amusd_speedup",
    "best_chain",
    "best_tree_tokens",
    "chain_tokens",
    "fewest_rounds",
    "pearl_speedup",
    "pearl_tokens",
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


def pearl_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Tokens per round of PEARL, whose rounds are a Markov chain of two states: pre- and post-verify."""
    passed = acceptance**num_draft_tokens
    return (1 - passed) / ((1 - acceptance) * (1 - passed + acceptance))


def pearl_speedup(acceptance: float, num_draft_tokens: int, *, cost_ratio: float) -> float:
    """PEARL over autoregressive decoding: a round takes as long as the slower of a window and a verification."""
    return pearl_tokens(acceptance, num_draft_tokens) / max(num_draft_tokens / cost_ratio, 1.0)


def amusd_speedup(acceptance: float, lookahead: int, *, cost_ratio: int) -> float:
    """AMUSD over autoregressive decoding, for a whole `cost_ratio` above `lookahead`, and messages that take no time.

    After a rejection the target waits for `lookahead` tokens and verifies those; from then on it verifies what was
    drafted during the verification before, `cost_ratio` - 1 tokens, until the next rejection.
    """
    survives = acceptance ** (lookahead + 1) / (1 - acceptance**cost_ratio)
    return 1 / ((1 - acceptance) * (1 + lookahead / cost_ratio + survives))


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
