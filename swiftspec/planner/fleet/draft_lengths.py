"""The best draft length by batch size, in closed form: draft steps one after another, then one verification for all.

The more requests share a verification, the more its rows cost, and the fewer tokens are worth drafting; from some batch
on none are.
"""

from collections.abc import Callable, Iterable, Sequence

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.bounds import ClosedForms
from swiftspec.planner.option import Option
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.policies.serial import SerialChain
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.closed_forms import fewest_rounds

__all__ = ["best_draft_lengths", "chain_tokens", "draft_lengths"]

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_LONGEST = 15


def best_draft_lengths(
    batches: Iterable[int],
    *,
    tokens_per_round: Sequence[float],
    round_s: Callable[[int, int], float],
    most_rows: int | None = None,
) -> list[DraftLength]:
    """For every batch the number of draft tokens with the most output tokens per second.

    Parameters
    ----------
    batches : iterable of int
        Requests that share every step.
    tokens_per_round : sequence of float
        Of a request with 0, 1, 2, .. draft tokens, the bonus token included.
    round_s : callable
        Seconds of a round, from the batch and the number of draft tokens.
    most_rows : int, optional
        Rows of a step: longer drafts than fit are left out.
    """
    found = []
    for batch in batches:
        lengths = [
            length
            for length in range(len(tokens_per_round))
            if length == 0 or most_rows is None or batch * (length + 1) <= most_rows
        ]
        speeds = {length: batch * tokens_per_round[length] / round_s(batch, length) for length in lengths}
        best = max(lengths, key=lambda length: speeds[length])
        found.append(
            DraftLength(batch=batch, num_draft_tokens=best, tokens_per_s=speeds[best], plain_tokens_per_s=speeds[0])
        )
    return found


def chain_tokens(trace: AcceptanceTrace, longest: int) -> list[float]:
    """Mean tokens per round of chains of 0 to `longest` draft tokens, replayed on a trace."""
    tokens = sum(len(prompt.ranks) for prompt in trace.prompts)
    found = []
    for length in range(longest + 1):
        rounds = sum(
            fewest_rounds(prompt.ranks.tolist(), verify_rows=length + 1, num_candidates=1) for prompt in trace.prompts
        )
        found.append(tokens / rounds)
    return found


def draft_lengths(
    profile: Profile, trace: AcceptanceTrace, *, num_devices: int, max_running: int, ranks: int = 1
) -> list[DraftLength]:
    """As `best_draft_lengths`, of a target and a draft that share devices; none if the profile does not price both."""
    closed, most_rows = ClosedForms(profile, trace), BatchLimits().max_rows
    tokens = chain_tokens(trace, _LONGEST)
    placed = {Role.TARGET: tuple(range(num_devices))}
    divided = {Role.TARGET: ranks} if ranks > 1 else {}

    def round_s(batch: int, length: int) -> float:
        policy = SerialChain(num_draft_tokens=length) if length else Autoregressive()
        return closed.round_s(Option(policy=policy, groups=placed, ranks=divided), sequences=batch)

    batches = [batch for batch in _BATCHES if batch <= min(max_running, most_rows)]
    try:
        return best_draft_lengths(batches, tokens_per_round=tokens, round_s=round_s, most_rows=most_rows)
    except ValueError:  # the profile has no steps of one of them there
        return []
