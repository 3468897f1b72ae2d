import pytest

from swiftspec.policies import Request, make_policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.recovery import RecoveringDraft, RecoveringTarget
from swiftspec.timing.timeline import Phase, Timeline
from tests.builders import Scripted, chain_trace, constant_profile, simulate_one

PATIENCE_S = 0.7
TRACE = chain_trace(num_tokens=60)


def dying(program: Program, num_effects: int) -> Program:
    """A process that ends in the middle of its work."""
    answer = None
    for _ in range(num_effects):
        answer = yield program.send(answer)


def simulated(num_draft_effects: int | None) -> tuple[Timeline, RecoveringTarget]:
    policy = make_policy("swiftspec", verify_rows=4)
    (prompt,) = TRACE.prompts
    request = Request(prompt=tuple(prompt.prompt_tokens.tolist()), max_new_tokens=60)
    target = RecoveringTarget(policy, request, fallback=Autoregressive(), patience_s=lambda: PATIENCE_S)
    draft = RecoveringDraft(policy, request).run()
    if num_draft_effects is not None:
        draft = dying(draft, num_draft_effects)
    profile = constant_profile(expand_s=0.01, verify_s=0.1, prefill_s=0.1, host_s={})
    return simulate_one(Scripted(scripts={Role.TARGET: target.run(), Role.DRAFT: draft}), profile, TRACE), target


@pytest.mark.parametrize("num_draft_effects", [1, 2, 5, 40, 100])
def test_a_target_whose_draft_dies_waits_one_patience_and_decodes_on_alone(num_draft_effects: int) -> None:
    timeline, target = simulated(num_draft_effects)
    assert timeline.num_tokens == 60
    assert (target.lost, target.num_losses) == (True, 1)
    waits_s = [span.end_s - span.start_s for span in timeline.phase(Phase.WAIT) if span.role is Role.TARGET]
    assert max(waits_s) == pytest.approx(PATIENCE_S)
    assert timeline.phase(Phase.VERIFY)[-1].rows == 1


def test_a_target_whose_draft_lives_never_misses_it() -> None:
    timeline, target = simulated(None)
    assert timeline.num_tokens == 60
    assert target.num_losses == 0
