"""Features on the simulated wire: messages that carry them arrive later, and those of the prompt come first."""

from itertools import pairwise

from swiftspec.acceptance.synthesis import synthesise_positions
from swiftspec.artifacts.profile import Profile
from swiftspec.files.document import ModelRef
from swiftspec.policies import DraftKind
from swiftspec.policies.asynchronous.ssd_head import SsdHead
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import Phase, Timeline
from tests.builders import constant_profile, host_point

MODEL = ModelRef(model="m", dtype="float32")
PROMPT, HOP_S, FEATURE_S = 40, 0.25, 0.01
# Nothing is accepted, and no outcome is prepared in time: every round verifies a chain made just in time.
TRACE = synthesise_positions(
    (0.5, 0.5),
    kind=DraftKind.HEAD,
    num_prompts=2,
    prompt_length=PROMPT,
    num_tokens=24,
    seed=0,
    target=MODEL,
    draft=MODEL,
)


def profile_with(feature_s: float) -> Profile:
    profile = constant_profile(expand_s=1.0, verify_s=8.0, prefill_s=16.0, host_s={Phase.WAIT: HOP_S})
    many = host_point(Phase.WAIT, HOP_S + 1000 * feature_s).model_copy(update={"rows": hop_rows(1000)})
    return profile.model_copy(update={"host": (*profile.host, many)})


def simulated(feature_s: float) -> list[Timeline]:
    return simulate(
        SsdHead(num_draft_tokens=2, branches=4),
        degrees=dict.fromkeys(Role, 1),
        profile=profile_with(feature_s),
        trace=TRACE,
    )


def test_the_head_reads_the_prompt_when_its_features_have_come() -> None:
    for timeline in simulated(FEATURE_S):
        sent_s = next(span.end_s for span in timeline.of(Role.TARGET) if span.phase is Phase.SEND)
        first = next(span for span in timeline.of(Role.DRAFT) if span.phase is Phase.PREFILL)
        assert abs(first.start_s - (sent_s + HOP_S + (PROMPT - 1) * FEATURE_S)) < 1e-9


def test_a_verdict_takes_as_much_longer_as_tokens_were_verified() -> None:
    for timeline in simulated(FEATURE_S):
        own = [span for span in timeline.of(Role.TARGET) if span.phase in (Phase.SEND, Phase.COMMIT)]
        verdicts = [(send.end_s, commit.tokens) for send, commit in pairwise(own[1:-2]) if send.phase is Phase.SEND]
        heard_s = [span.end_s for span in timeline.of(Role.DRAFT) if span.phase is Phase.WAIT]
        assert len(verdicts) > 3
        for sent_s, tokens in verdicts:
            arrival_s = sent_s + HOP_S + tokens * FEATURE_S
            assert min(abs(time_s - arrival_s) for time_s in heard_s) < 1e-9
