"""Requests of an engine with a draft server, simulated: its programs wait and go on as the drafter's do."""

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from swiftspec.timing.timeline import Phase, Timeline
from tests.builders import constant_profile
from tools.iid_trace import synthesise_trace

TOKENS = 60
ALWAYS = synthesise_trace([1.0], prompt_lengths=[40], num_tokens=TOKENS, seed=0)
SOMETIMES = synthesise_trace([0.7, 0.2], prompt_lengths=[40] * 4, num_tokens=TOKENS, seed=0)
CHAIN = make_policy("swiftspec_chain", num_draft_tokens=3)
GROUPS = {Role.TARGET: 1, Role.DRAFT: 1}


def engine(*, expand_s: float, verify_s: float = 0.1) -> Profile:
    """One whose own draft would be slow, beside a draft server."""
    drafts = constant_profile(expand_s=expand_s, verify_s=9.0, prefill_s=expand_s)
    served = constant_profile(expand_s=5.0, verify_s=verify_s, prefill_s=verify_s)
    return served.model_copy(update={"draft_profile": drafts, "peers_interfere": False})


def timelines(profile: Profile, trace: AcceptanceTrace = ALWAYS) -> list[Timeline]:
    return simulate(CHAIN, degrees=GROUPS, profile=profile, trace=trace)


def rows(timeline: Timeline) -> list[int]:
    return [span.rows for span in timeline.spans if span.phase is Phase.VERIFY]


def test_the_first_step_is_plain_and_the_others_verify_what_was_drafted_meanwhile() -> None:
    (found,) = timelines(engine(expand_s=0.01))
    assert rows(found) == [1, 3, *[4] * 14]
    assert found.num_tokens == TOKENS
    # A prompt and sixteen steps; the first draft is waited for, the later ones are there.
    assert found.e2e_s == pytest.approx(0.1 + 16 * 0.1 + 2 * 0.01, rel=0.06)


def test_steps_that_take_longer_than_the_pause_between_probes_still_meet_the_draft_at_once() -> None:
    (found,) = timelines(engine(expand_s=0.02, verify_s=0.4))
    assert rows(found)[:3] == [1, 3, 4]


def test_a_draft_that_is_too_slow_costs_two_steps_at_a_time_and_no_token() -> None:
    (found,) = timelines(engine(expand_s=0.15))
    assert rows(found).count(1) > TOKENS / 2
    assert found.num_tokens == TOKENS
    waits_s = [
        span.end_s - span.start_s for span in found.spans if span.role is Role.TARGET and span.phase is Phase.WAIT
    ]
    assert 0.1 < max(waits_s) <= 0.2 + 1e-9
    assert found.e2e_s < 1.3 * 0.1 * TOKENS


def test_forwards_of_the_draft_are_those_of_its_own_devices() -> None:
    fast, slow = (timelines(engine(expand_s=expand_s), SOMETIMES) for expand_s in (0.001, 0.03))
    assert sum(one.e2e_s for one in fast) < sum(one.e2e_s for one in slow)
    expansions = [span.end_s - span.start_s for one in slow for span in one.spans if span.phase is Phase.EXPAND]
    assert all(seconds == pytest.approx(0.03) for seconds in expansions)
    assert len(expansions) > TOKENS


def test_a_profile_without_a_draft_server_starts_both_at_once() -> None:
    profile = constant_profile(expand_s=0.01, verify_s=0.1, prefill_s=0.1)
    (found,) = timelines(profile)
    assert rows(found) == [3, *[4] * 15]
