"""Draft tokens of a chain by the number of clients: rounds are simulated once, and priced for each number."""

from collections.abc import Sequence

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.step_costs import StepCosts
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.kinds.named import chain_for
from swiftspec.planner.kinds.rounds import priced, rounds_of
from swiftspec.planner.kinds.shapes import MOST_ROWS
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator

__all__ = ["draft_schedule"]

_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_NUM_PROMPTS, _NUM_TOKENS = 16, 96


def draft_schedule(
    profile: Profile, trace: AcceptanceTrace, *, num_devices: int, max_running: int, ranks: int = 1
) -> Sequence[DraftLength]:
    """The fastest chain for 1, 2, 4, .. clients up to `max_running`, 0 tokens where none is faster.

    Of a target and a draft that share devices. Rounds of more rows than the profile has are
    extrapolated: 64, or 512 of a composed mixture.
    """
    chains: list[Policy] = [Autoregressive(), *chain_for(trace.draft_kind).search_space()]
    simulator = Simulator(profile, trace)
    indices = range(min(_NUM_PROMPTS, len(trace.prompts)))
    lengths = [len(one.prompt_tokens) + len(one.target_tokens) // 2 for one in trace.prompts]
    known = []
    for chain in chains:
        run = simulator.run(
            chain,
            degrees={Role.TARGET: num_devices},
            ranks={Role.TARGET: ranks},
            prompt_indices=indices,
            max_new_tokens=_NUM_TOKENS,
        )
        costs = StepCosts.of(
            chain,
            profile.latencies,
            degrees=dict.fromkeys(Role, num_devices),
            ranks=dict.fromkeys(Role, ranks),
            context=sum(lengths) // len(lengths),
        )
        known.append((chain.target_rows - 1, rounds_of(run.timelines), costs))
    found = []
    for clients in (count for count in _CLIENTS if count <= max_running):
        speeds = {
            length: clients * priced(rounds, costs, clients).tokens_per_s
            for length, rounds, costs in known
            if rounds and (length == 0 or clients * (length + 1) <= MOST_ROWS)
        }
        best = max(speeds, key=lambda length: speeds[length])
        found.append(
            DraftLength(batch=clients, num_draft_tokens=best, tokens_per_s=speeds[best], plain_tokens_per_s=speeds[0])
        )
    return found
