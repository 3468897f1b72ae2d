"""Closed-form speed-ups of published policies, against which the simulator is tested.

Acceptance is independent and identical at every position, and a verification's time does not depend on its rows.
"""

import math
from collections.abc import Sequence

_NEGLIGIBLE = 1e-12


def chain_tokens(acceptance: float, num_draft_tokens: int) -> float:
    """Tokens per round of a chain, bonus included: (1 - a^(k+1)) / (1 - a)."""
    if acceptance == 1:
        return float(num_draft_tokens + 1)
    return float((1 - acceptance ** (num_draft_tokens + 1)) / (1 - acceptance))


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


def amusd_speedup(acceptance: float, lookahead: int, *, cost_ratio: float) -> float:
    """AMUSD (arXiv 2410.17375) over autoregressive decoding, for messages that take no time.

    After a rejection the target waits for `lookahead` tokens; from then on it verifies, as soon as it is free, all
    tokens drafted meanwhile, and waits only for `lookahead` tokens after its bonus token. The tokens of n draft steps
    pass if n + 1 tokens are right; the draft notices a verdict when its current step ends. A token counts for a
    verification that begins just as the token's step ends: for an integer c above m = `lookahead`, c - 1 tokens are
    drafted during the previous verification, and the speed-up is 1 / ((1 - a)(1 + m/c + a^(m+1) / (1 - a^c))).
    """
    start, steps, passes, noticed = float(lookahead), 0.0, 1.0, 0
    while passes > _NEGLIGIBLE:
        end, drafted = start + cost_ratio, math.floor(start)
        steps += passes * (math.ceil(end) - noticed)
        noticed = math.ceil(end)
        passes = acceptance ** (drafted + 1)
        start = max(end, drafted + 1.0 + lookahead)
    return cost_ratio / ((1 - acceptance) * steps)


def dsi_speedup(acceptance: float, num_draft_tokens: int, *, cost_ratio: float, last_row: bool = True) -> float:
    """DSI (arXiv 2405.14105) over autoregressive decoding: unlimited groups, a whole `cost_ratio` of a block or more.

    An error costs a verification, and the drafting of every block since the last error that had to be verified to find
    it. With `last_row` the row of a block's last token yields the next token, as in any verification: a/(1 - a^k)
    blocks of k tokens. Without it, a block yields only its own tokens, and only the very first one is known without its
    block: a^k/(1 - a^k) + a blocks.
    """
    passes = acceptance**num_draft_tokens
    blocks = acceptance / (1 - passes) if last_row else passes / (1 - passes) + acceptance
    return 1 / ((1 - acceptance) * (1 + blocks * num_draft_tokens / cost_ratio))


def mirror_round_s(*, expansions: int, expand_s: float, exit_s: float, finish_s: float, hit_fraction: float) -> float:
    """A round of Mirror-SD (arXiv 2510.13161), with messages that take no time.

    The draft's `expansions` for the next chain overlap the target's other half; if the outcome was not prepared, they
    are repeated while the target waits. The draft's work during the first half must fit into it.
    """
    rolled_out_s = expansions * expand_s
    return exit_s + max(finish_s, rolled_out_s) + (1 - hit_fraction) * rolled_out_s


def fewest_rounds(ranks: Sequence[int], *, verify_rows: int, num_candidates: int) -> int:
    """Lower bound of the verifications that any policy needs for a traced output, however fast its draft is.

    To accept a token of rank r, a best subtree holds it and its r better siblings; so the accepted tokens of a round
    have sum(rank + 1) <= verify_rows - 1. Then the bonus token follows, of any rank. A round that starts later in the
    output never ends earlier, so advancing as far as possible every time needs the fewest rounds.

    ranks: rank of the target's token among the draft's, at every output position. verify_rows, num_candidates: rows of
    a verification, the root included; children per node.
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
