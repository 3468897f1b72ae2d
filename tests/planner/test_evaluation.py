import numpy as np
import pytest

from swiftspec.artifacts.metrics import measure
from swiftspec.planner.search.evaluation import Budget, Evaluator
from swiftspec.planner.search.option import Option
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from tests.builders import constant_profile, machine_profile
from tools.iid_trace import synthesise_trace

TRACE = synthesise_trace((0.6, 0.2), prompt_lengths=(8, 8, 8, 8), num_tokens=40, seed=1)
PROFILE = machine_profile()
OPTIONS = [
    *(Option(policy=SerialChain(num_draft_tokens=n), groups={Role.TARGET: (0,)}) for n in range(1, 9)),
    *(Option(policy=SwiftSpec(verify_rows=n), groups={Role.TARGET: (0,), Role.DRAFT: (1,)}) for n in (4, 8, 12)),
]
EFFORT = Budget(prompt_indices=(0, 2), max_new_tokens=20, seeds=(3, 4))
WHOLE = Budget(prompt_indices=(0, 1, 2, 3), max_new_tokens=40, seeds=(7,), explain=True)


def test_outcomes_do_not_depend_on_where_they_ran() -> None:
    here, there = (Evaluator(PROFILE, TRACE, num_jobs=num_jobs).run(OPTIONS, EFFORT) for num_jobs in (1, 2))
    for left, right, option in zip(here, there, OPTIONS, strict=True):
        assert left.option.key == right.option.key == option.key
        assert np.array_equal(left.request_s, right.request_s)
        assert left.seconds == right.seconds


def test_outcome_of_a_whole_trace_is_what_simulate_gives() -> None:
    (outcome,) = Evaluator(PROFILE, TRACE, num_jobs=1).run(OPTIONS[-1:], WHOLE)
    policy = OPTIONS[-1].policy
    expected = measure(simulate(policy, degrees=OPTIONS[-1].degrees, profile=PROFILE, trace=TRACE, seed=7))
    assert outcome.metrics == expected
    assert outcome.tokens_per_s == pytest.approx(expected.figures.tokens_per_s)


def test_an_output_cut_short_is_extended_at_its_own_pace() -> None:
    flawless = synthesise_trace((1.0,), prompt_lengths=(8,), num_tokens=101, seed=1)
    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=3.0)
    option = Option(policy=SerialChain(num_draft_tokens=4), groups={Role.TARGET: (0,)})
    whole, part = (
        Evaluator(profile, flawless, num_jobs=1).run(
            [option], Budget(prompt_indices=(0,), max_new_tokens=limit, seeds=(0,))
        )[0]
        for limit in (101, 51)
    )
    assert part.request_s.shape == (1, 1)
    # A first commit of 5 tokens counts as one in TPOT, hence not exactly.
    assert part.request_s.item() == pytest.approx(whole.request_s.item(), rel=0.05)
