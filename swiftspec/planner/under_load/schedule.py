"""Draft tokens of a chain by the number of clients: the one schedule, of this package's engine or of another."""

from collections.abc import Sequence
from statistics import fmean

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.drafts.named import chain_for
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.planner.under_load.serving_engine import ServingEngine
from swiftspec.policies import Policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.setup import Setup

_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


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

    Of a target and a draft that share devices; none if the profile does not price both. Requests are as long as the
    trace's.
    """
    predictor = Predictor(profile, trace, serving=serving)
    chains: list[Policy] = [Autoregressive(), *chain_for(trace.draft_kind).search_space()]
    setups = [Setup(policy=chain, degrees={Role.TARGET: num_devices}, ranks={Role.TARGET: ranks}) for chain in chains]
    try:
        able = [setup for setup in setups if any(predictor.rounds(setup).values())]
    except ValueError:  # the profile has no steps of one of them there
        return []
    if not able:  # outputs are too short to have a whole round
        return []
    most_rows = serving.limits.step_tokens if serving else BatchLimits().max_rows
    prompt_tokens = round(fmean(one.prompt_length for one in trace.prompts))
    output_tokens = round(fmean(len(one.target_tokens) for one in trace.prompts))
    found = []
    for clients in (count for count in _CLIENTS if count <= max_running):
        by_length: dict[int, float] = {}  # tokens/s of all clients, by the number of draft tokens
        for setup in able:
            length = setup.policy.target_rows - 1
            if length == 0 or clients * (length + 1) <= most_rows:  # it fits into a step
                run = predictor.closed_loop(setup, clients, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
                by_length[length] = clients / run.metrics.tpot_s.mean
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
