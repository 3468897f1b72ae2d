"""Plans for a draft whose KV cache keeps a number of tokens."""

from functools import cache

import pytest

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import plan_for
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tests.builders import WHOSE

BUDGET = 512
SHORT, LONG = 256, 100_000


@cache
def planned(context: int, budget: int | None) -> Planned:
    machine = Deployment(device="h100-sxm", num_devices=1, context=context, output_tokens=48, draft_kv_budget=budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.planner.for_device.NUM_PROMPTS", 4)
        return plan_for(
            machine,
            target="llama-3.1-8b",
            draft="llama-3.2-1b",
            options=SearchOptions(policy="serial_chain", num_jobs=1),
            progress=lambda *_: None,
        )


def chain(context: int, budget: int | None) -> Candidate:
    return planned(context, budget).plan.candidates["serial_chain"]


def length(candidate: Candidate) -> int:
    policy = candidate.build()
    assert isinstance(policy, SerialChain)
    return policy.num_draft_tokens


def speed(candidate: Candidate) -> float:
    return candidate.prediction.metrics.decoding_tokens_per_s


def test_behind_a_long_context_longer_chains_are_drafted_and_faster() -> None:
    whole, limited = chain(LONG, None), chain(LONG, BUDGET)
    assert length(limited) > length(whole)
    assert speed(limited) > 1.2 * speed(whole)
    alone = [planned(LONG, budget).plan.candidates["autoregressive"] for budget in (None, BUDGET)]
    assert speed(alone[0]) == pytest.approx(speed(alone[1]))


def test_behind_a_short_one_nothing_changes() -> None:
    whole, limited = chain(SHORT, None), chain(SHORT, BUDGET)
    assert limited.shape == whole.shape
    assert speed(limited) == pytest.approx(speed(whole))


def test_a_forward_of_the_draft_costs_what_it_does_behind_the_budget() -> None:
    found = planned(LONG, BUDGET).profile
    whole = planned(LONG, None).profile

    def seconds(profile: Profile, phase: Phase, context: int) -> float:
        return profile.step(StepKey(WHOSE[phase], phase, degree=1, rows=1, context=context)).mean_s

    def further_s(role: Role, context: int) -> float:
        return found.latencies.further_sequences(StepKey(role, Phase.VERIFY, 1, 2, context, sequences=2))[0]

    assert seconds(found, Phase.EXPAND, LONG) == seconds(found, Phase.EXPAND, BUDGET)
    assert seconds(found, Phase.EXPAND, LONG) < 0.8 * seconds(whole, Phase.EXPAND, LONG)
    assert seconds(found, Phase.VERIFY, LONG) == seconds(whole, Phase.VERIFY, LONG)
    assert [further_s(role, LONG) / further_s(role, BUDGET) for role in Role] == pytest.approx([LONG / BUDGET, 1.0])


def test_a_plan_says_that_acceptance_is_not_that_of_such_a_draft() -> None:
    limited = planned(SHORT, BUDGET)
    assert limited.plan.acceptance is not None
    assert "not 512 (draft_kv_budget)" in limited.plan.acceptance.warning
    assert "a draft whose cache keeps 512 tokens" in limited.profile.sources[-1]


def test_a_budget_is_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="draft_kv_budget is 0; expected at least 1"):
        Deployment(device="h100", num_devices=1, draft_kv_budget=0)
