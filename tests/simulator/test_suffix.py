"""Drafting from the text on the bundled prompts, simulated: the same every time, on any machine."""

from functools import cache

import pytest

from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from tools.pictures import RECORDED

PROMPTS = range(0, 119, 6)


@cache
def recorded() -> tuple[Profile, AcceptanceTrace]:
    return Profile.load(RECORDED / "profile.json"), AcceptanceTrace.load(RECORDED / "trace.npz")


@cache
def simulated(policy: Policy) -> Metrics:
    profile, trace = recorded()
    return measure(
        simulate(policy, degrees={Role.TARGET: 2}, profile=profile, trace=trace, prompt_indices=list(PROMPTS))
    )


@pytest.mark.parametrize("verify_rows", [4, 8, 16])
def test_a_suffix_tree_finds_more_than_the_last_occurrence(verify_rows: int) -> None:
    lookup = simulated(make_policy("prompt_lookup", num_draft_tokens=verify_rows - 1)).figures
    suffix = simulated(make_policy("suffix_decoding", verify_rows=verify_rows, max_spec_factor=4.0)).figures
    assert suffix.tokens_per_round > 1.1 * lookup.tokens_per_round
    assert suffix.tokens_per_s > lookup.tokens_per_s


def test_suffix_or_draft_is_faster_than_either() -> None:
    both = make_policy("suffix_or_draft", num_draft_tokens=4, least_score=5.0, verify_rows=16, max_spec_factor=4.0)
    suffix = make_policy("suffix_decoding", verify_rows=16, max_spec_factor=4.0)
    chain = make_policy("serial_chain", num_draft_tokens=4)
    speeds = [simulated(policy).figures.tokens_per_s for policy in (both, suffix, chain)]
    assert max(speeds) == speeds[0]
