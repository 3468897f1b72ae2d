"""Acceptance of a chain of draft tokens by position, replayed on a trace: what engines imitate without a draft."""

from swiftspec.artifacts.trace import AcceptanceTrace

__all__ = ["chain_rates"]


def chain_rates(trace: AcceptanceTrace, num_draft_tokens: int) -> tuple[float, ...]:
    """Share of the rounds in which at least 1, 2, .. draft tokens are accepted; 1 plus their sum are a round's tokens.

    Rounds follow each other through every output, as greedy chains do. Those that begin too close to its end to accept
    a whole chain are left out.

    Parameters
    ----------
    trace : AcceptanceTrace
    num_draft_tokens : int
        Of a round.

    Raises
    ------
    ValueError
        If every output is too short for a round.
    """
    reached, rounds = [0] * num_draft_tokens, 0
    for prompt in trace.prompts:
        ranks, start = prompt.ranks.tolist(), 0
        while start + num_draft_tokens < len(ranks):
            drafted = ranks[start : start + num_draft_tokens]
            accepted = next((at for at, rank in enumerate(drafted) if rank), num_draft_tokens)
            for position in range(accepted):
                reached[position] += 1
            rounds += 1
            start += accepted + 1
    if not rounds:
        longest = max(len(prompt.ranks) for prompt in trace.prompts)
        raise ValueError(
            f"trace has outputs of at most {longest} tokens; expected one longer than a chain of {num_draft_tokens}"
        )
    return tuple(count / rounds for count in reached)
