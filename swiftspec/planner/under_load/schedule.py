"""Draft tokens of a chain by the number of clients: the one schedule, of this package's engine or of another."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.step_costs import StepCosts
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.kinds.named import chain_for
from swiftspec.planner.under_load.candidates import ServingEngine, chains_from, closed_loop, recorded_rounds
from swiftspec.planner.under_load.rounds import Round, priced
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role

__all__ = ["draft_schedule"]

_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_ROWS = 512  # of a step of this package's engine that clients share


def draft_schedule(
    profile: Profile,
    trace: AcceptanceTrace,
    *,
    num_devices: int,
    max_running: int,
    ranks: int = 1,
    serving: ServingEngine | None = None,
) -> Sequence[DraftLength]:
    """The fastest chain for 1, 2, 4, .. clients up to `max_running`, 0 tokens where none is faster.

    Of a target and a draft that share devices; none if the profile does not price both. Each chain's rounds are
    recorded once: they are priced by the profile's steps, or simulated under an engine that serves, with requests as
    long as the trace's.
    """
    speeds = _under_engine(serving, trace, num_devices) if serving else _priced(profile, trace, num_devices, ranks)
    chains: list[Policy] = [Autoregressive(), *chain_for(trace.draft_kind).search_space()]
    try:
        known = [
            (
                chain.target_rows - 1,
                chain,
                recorded_rounds(chain, num_devices, latencies=profile.latencies, trace=trace, seed=0, ranks=ranks),
            )
            for chain in chains
        ]
    except ValueError:  # the profile has no steps of one of them there
        return []
    found = []
    for clients in (count for count in _CLIENTS if count <= max_running):
        by_length = dict(_speeds(known, clients, speeds, most_rows=serving.step_tokens if serving else _MOST_ROWS))
        best = max(by_length, key=lambda length: by_length[length])
        found.append(
            DraftLength(
                batch=clients,
                num_draft_tokens=best,
                tokens_per_s=by_length[best],
                plain_tokens_per_s=by_length[0],
            )
        )
    return found


def _speeds(
    known: Sequence[tuple[int, Policy, list[Round]]],
    clients: int,
    speed: Callable[[Policy, list[Round], int], float],
    *,
    most_rows: int,
) -> Iterator[tuple[int, float]]:
    """Tokens/s of all clients by the number of draft tokens, of those that fit into a step."""
    for length, chain, rounds in known:
        if rounds and (length == 0 or clients * (length + 1) <= most_rows):
            yield length, clients * speed(chain, rounds, clients)


def _priced(
    profile: Profile, trace: AcceptanceTrace, num_devices: int, ranks: int
) -> Callable[[Policy, list[Round], int], float]:
    """A client's tokens/s while all decode, by the profile's steps."""
    lengths = [len(one.prompt_tokens) + len(one.target_tokens) // 2 for one in trace.prompts]

    def speed(chain: Policy, rounds: list[Round], clients: int) -> float:
        costs = StepCosts.of(
            chain,
            profile.latencies,
            degrees=dict.fromkeys(Role, num_devices),
            ranks=dict.fromkeys(Role, ranks),
            context=sum(lengths) // len(lengths),
        )
        return priced(rounds, costs, clients).tokens_per_s

    return speed


def _under_engine(
    serving: ServingEngine, trace: AcceptanceTrace, num_devices: int
) -> Callable[[Policy, list[Round], int], float]:
    """A client's tokens/s under the engine's step rule, its prompts read in between."""
    prompt_tokens = round(fmean(one.prompt_length for one in trace.prompts))
    output_tokens = round(fmean(len(one.target_tokens) for one in trace.prompts))
    served = serving.deployed(num_devices, context=prompt_tokens + output_tokens)

    def speed(_: Policy, rounds: list[Round], clients: int) -> float:
        chains = chains_from(rounds, served, serving.draft)
        run = closed_loop(served, chains, clients, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return 1 / float(run.tpot_s.mean())

    return speed
