"""Drafting from the text on the bundled prompts, simulated: the same every time, on any machine."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from swiftspec.artifacts.metrics import Metrics, measure
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.routing import Replicas
from swiftspec.simulator.driver import simulate
from swiftspec.simulator.jobs import Job
from swiftspec.simulator.serving import Serving
from swiftspec.timing.timeline import Phase, Timeline
from tools.pictures import RECORDED

PROMPTS = range(0, 119, 6)


@cache
def recorded() -> tuple[Profile, AcceptanceTrace]:
    return Profile.load(RECORDED / "profile.json"), AcceptanceTrace.load(RECORDED / "trace.npz")


@cache
def simulated(policy: Policy, prompts: Sequence[int] = PROMPTS) -> Metrics:
    profile, trace = recorded()
    return measure(simulate(policy, degrees={Role.TARGET: 2}, profile=profile, trace=trace, prompt_indices=prompts))


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


def test_earlier_outputs_are_worth_more_the_more_alike_requests_are() -> None:
    own = SuffixDecoding(verify_rows=16, max_spec_factor=4.0)
    shared = replace(own, earlier_outputs=1000)
    of_two_modules, twice = range(30), (*PROMPTS, *PROMPTS)
    gains = [
        simulated(shared, prompts).figures.tokens_per_round / simulated(own, prompts).figures.tokens_per_round
        for prompts in (PROMPTS, of_two_modules, twice)
    ]
    assert 1 < gains[0] < gains[1] < gains[2]


def test_a_server_of_one_request_at_a_time_knows_what_the_prompts_in_turn_know() -> None:
    """Number of verifications, request by request; two replicas know half of the outputs each."""
    profile, trace = recorded()
    policy = SuffixDecoding(verify_rows=16, max_spec_factor=4.0, earlier_outputs=3)
    prompts = [0, 1, 0, 2, 1, 1]
    jobs = [Job(prompt_index=index, output_tokens=40, arrival_s=10.0 * number) for number, index in enumerate(prompts)]
    serving = Serving(
        profile.latencies,
        trace,
        policy,
        degrees={Role.TARGET: 2},
        admission=AdmissionLimits(max_running=1, tree_rows=policy.target_rows),
        batch=BatchLimits(),
    )

    def in_turn(indices: list[int]) -> list[int]:
        timelines = simulate(
            policy,
            degrees={Role.TARGET: 2},
            profile=profile,
            trace=trace,
            prompt_indices=indices,
            max_new_tokens=40,
        )
        return list(map(num_rounds, timelines))

    def served(replicas: Replicas) -> list[int]:
        run = serving.run(jobs, replicas=replicas)
        return [num_rounds(request.timeline) for request in run.requests]

    assert served(Replicas()) == in_turn(prompts)
    halves = served(Replicas(num_targets=2))
    assert (halves[::2], halves[1::2]) == (in_turn(prompts[::2]), in_turn(prompts[1::2]))


def num_rounds(timeline: Timeline) -> int:
    return sum(span.phase is Phase.VERIFY for span in timeline.spans)
