"""Speeds from forwards that a paper prints, for a pair of which nothing else is known."""

from collections.abc import Mapping
from functools import cache

import numpy as np

from swiftspec.acceptance.model import PRIOR, AcceptanceModel
from swiftspec.acceptance.synthesis import synthesise
from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.studies.backtest.figures import Ranks, fit_acceptance_model
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.timeline import Phase

# Texts on which it does not matter to a draft token what was accepted before it.
INDEPENDENT = PRIOR.model_copy(update={"persistence": 0.0})
_NUM_TOKENS = 256
_JITTER = np.linspace(0.999, 1.001, NUM_QUANTILES)


@cache
def independent(acceptance: float) -> AcceptanceModel:
    """Texts on which every draft token is accepted with this probability."""
    share = Ranks(values=(acceptance,))
    return fit_acceptance_model([share], prior=INDEPENDENT, fields=("mean_logit",)).acceptance_model


def timed_speed(profile: Profile, acceptance_model: AcceptanceModel, policy: Policy, *, num_prompts: int = 16) -> float:
    """Tokens per second of a policy on synthesised texts, without their prefills."""
    trace = synthesise(
        acceptance_model,
        num_prompts=num_prompts,
        prompt_length=1,
        num_tokens=_NUM_TOKENS,
        seed=0,
        target=profile.target,
        draft=profile.draft,
    )
    run = Simulator(profile, trace).run(policy, degrees=dict.fromkeys(Role, 1))
    return measure(run.timelines).decoding_tokens_per_s


def timed_profile(
    seconds: Mapping[tuple[Role, Phase, int], float], *, device: str, target: ModelRef, draft: ModelRef
) -> Profile:
    """Each model on a device of its own. seconds: of forwards by their rows, at any context.

    They differ by 0.1 % at most from run to run: if a verification lasted as long as a whole number of draft steps, to
    the instant, the last of these would never be in time.
    """
    return Profile(
        origin=Origin.here(),
        device=device,
        num_devices=2,
        target=target,
        draft=draft,
        steps=tuple(_nearly(*key, one_s) for key, one_s in seconds.items()),
        host=(),
        peers_interfere=False,
    )


def _nearly(role: Role, phase: Phase, rows: int, seconds: float) -> StepPoint:
    return StepPoint(
        role=role,
        phase=phase,
        degree=1,
        peer_busy=False,
        rows=rows,
        context=0,
        quantiles_s=tuple((seconds * _JITTER).tolist()),
        num_samples=1,
        provenance=Provenance.PUBLISHED,
    )
