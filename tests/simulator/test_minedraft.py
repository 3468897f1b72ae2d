"""MineDraft under load: closed forms of rounds whose batches take turns."""

from itertools import pairwise
from statistics import fmean

import pytest

from swiftspec.policies.asynchronous.minedraft import MineDraft
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import Job
from swiftspec.simulator.serving import Serving
from swiftspec.timing.timeline import Phase
from tests.builders import chain_trace, constant_profile

EXPAND_S, VERIFY_S = 0.001, 0.01
NUM_REQUESTS = 6


def verifications(policy: MineDraft, *, num_batches: int) -> tuple[float, set[int]]:
    """Seconds from one verification of a request to its next, and the requests that shared one; the draft is right."""
    serving = Serving(
        constant_profile(expand_s=EXPAND_S, verify_s=VERIFY_S, prefill_s=0.001).latencies,
        chain_trace(num_tokens=200, prompts=NUM_REQUESTS),
        policy,
        degrees={Role.TARGET: 1, Role.DRAFT: 1},
        admission=AdmissionLimits(max_running=NUM_REQUESTS),
        batch=BatchLimits(gather_s=1.0, num_batches=num_batches),
    )
    run = serving.run([Job(prompt_index=number, output_tokens=200) for number in range(NUM_REQUESTS)])
    assert all(request.output == request.text.output for request in run.requests)
    gaps_s, sizes = [], set()
    for request in run.requests:
        starts_s = [span.start_s for span in request.timeline.of(Role.TARGET) if span.phase is Phase.VERIFY]
        gaps_s += [after - before for before, after in pairwise(starts_s[2:-2])]
    middle_s = run.end_s / 2
    sizes = {step.num_requests for step in run.steps if step.phase is Phase.VERIFY and step.end_s < middle_s}
    return fmean(gaps_s), sizes


@pytest.mark.parametrize("num_draft_tokens", [3, 6])
def test_drafting_that_fits_beside_a_verification_costs_no_time(num_draft_tokens: int) -> None:
    """Every request is in each second verification; without turns, a round is a chain and a verification."""
    policy = MineDraft(num_draft_tokens=num_draft_tokens)
    in_turn_s, sizes = verifications(policy, num_batches=policy.num_batches)
    assert in_turn_s == pytest.approx(2 * VERIFY_S, rel=0.01)
    assert sizes == {NUM_REQUESTS // 2}
    together_s, _ = verifications(policy, num_batches=1)
    assert together_s == pytest.approx(VERIFY_S + (num_draft_tokens + 1) * EXPAND_S, rel=0.1)


def test_where_a_chain_takes_longer_than_a_verification_the_target_waits_for_it() -> None:
    seconds, _ = verifications(MineDraft(num_draft_tokens=25), num_batches=2)
    assert seconds == pytest.approx(VERIFY_S + 25 * EXPAND_S, rel=0.1)
