from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.artifacts.metrics import measure
from swiftspec.planner.search.estimates import best_tree_tokens
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.asynchronous.minedraft import MineDraft
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Commit, Prefill, Program, Receive, Role, Send, Stop, TargetForward
from swiftspec.simulator.driver import Simulator, simulate
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase, Timeline
from swiftspec.timing.warm_up import WarmUpCost
from tests.builders import SPLIT, Scripted, chain_trace, constant_profile, machine_profile, simulate_one
from tools.closed_forms import chain_tokens
from tools.iid_trace import synthesise_trace

RANKS = (0.6, 0.2, 0.1)
POLICIES: tuple[Policy, ...] = (
    Autoregressive(),
    SerialChain(num_draft_tokens=3),
    SerialTree(verify_rows=6, expand_rows=2, expansions=3, num_candidates=3),
    SwiftSpec(verify_rows=6, expand_rows=2, num_candidates=3, tree_capacity=24),
    SwiftSpec(verify_rows=4, expand_rows=1, num_candidates=1, tree_capacity=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A policy whose committed tokens are kept, request by request."""

    policy: Policy
    outputs: list[list[int]] = field(default_factory=list)
    name: ClassVar[str] = "recorded"
    earlier_outputs: ClassVar[int] = 0

    @property
    def layout(self) -> Layout:
        return self.policy.layout

    @property
    def target_groups(self) -> int:
        return self.policy.target_groups

    def programs(self, request: Request) -> dict[Role, Program]:
        self.outputs.append([])
        return {role: self._listen(program) for role, program in self.policy.programs(request).items()}

    def _listen(self, program: Program) -> Program:
        answer: Any = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                return
            if isinstance(effect, Commit):
                self.outputs[-1] += effect.tokens
            answer = yield effect


def log(timeline: Timeline) -> list[tuple[str, str, int, int, float, float]]:
    return [(s.role.value, s.phase.value, s.rows, s.tokens, s.start_s, s.end_s) for s in timeline.spans]


def test_autoregressive_log() -> None:
    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=2.0)
    timeline = simulate_one(Autoregressive(), profile, chain_trace(num_tokens=3))
    assert log(timeline) == [
        ("target", "prefill", 4, 0, 0.0, 2.0),
        ("target", "commit", 0, 1, 2.0, 2.0),
        ("target", "verify", 1, 0, 2.0, 7.0),
        ("target", "compact", 1, 0, 7.0, 7.0),
        ("target", "commit", 0, 1, 7.0, 7.0),
        ("target", "verify", 1, 0, 7.0, 12.0),
        ("target", "compact", 1, 0, 12.0, 12.0),
        ("target", "commit", 0, 1, 12.0, 12.0),
    ]


def test_serial_round_is_drafts_then_verification() -> None:
    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=2.0)
    timeline = simulate_one(SerialChain(num_draft_tokens=2), profile, chain_trace(num_tokens=5))
    assert log(timeline) == [
        ("target", "prefill", 3, 0, 0.0, 2.0),
        ("target", "prefill", 3, 0, 2.0, 4.0),
        ("target", "expand", 1, 0, 4.0, 5.0),
        ("target", "expand", 1, 0, 5.0, 6.0),
        ("target", "verify", 3, 0, 6.0, 11.0),
        ("target", "commit", 0, 3, 11.0, 11.0),
        ("target", "compact", 3, 0, 11.0, 11.0),
        ("target", "compact", 2, 0, 11.0, 11.0),
        ("target", "expand", 2, 0, 11.0, 12.0),  # the last drafted token was not a row yet
        ("target", "expand", 1, 0, 12.0, 13.0),
        ("target", "verify", 3, 0, 13.0, 18.0),
        ("target", "commit", 0, 2, 18.0, 18.0),
    ]
    assert [span.model.value for span in timeline.phase(Phase.PREFILL)] == ["target", "draft"]


def test_swiftspec_log() -> None:
    """The draft, always right, grows on while the target verifies; the second round is a hit."""
    host = {Phase.WAIT: 0.25, Phase.SEND: 0.125}
    profile = constant_profile(expand_s=1.0, verify_s=3.5, prefill_s=2.0, host_s=host)
    policy = SwiftSpec(verify_rows=3, expand_rows=1, num_candidates=1, tree_capacity=16)
    timeline = simulate_one(policy, profile, chain_trace(num_tokens=6))
    draft = [entry[1:] for entry in log(timeline) if entry[0] == "draft"]
    target = [entry[1:] for entry in log(timeline) if entry[0] == "target"]
    assert target == [
        ("prefill", 3, 0, 0.0, 2.0),
        ("send", 0, 0, 2.0, 2.125),
        ("wait", 0, 0, 2.125, 4.375),
        ("verify", 3, 0, 4.375, 7.875),
        ("send", 0, 0, 7.875, 8.0),
        ("commit", 0, 3, 8.0, 8.0),
        ("compact", 3, 0, 8.0, 8.0),
        ("wait", 0, 0, 8.0, 9.5),
        ("verify", 3, 0, 9.5, 13.0),
        ("send", 0, 0, 13.0, 13.125),
        ("commit", 0, 3, 13.125, 13.125),
    ]
    assert draft == [
        ("prefill", 3, 0, 0.0, 2.0),
        ("expand", 1, 0, 2.0, 3.0),
        ("wait", 0, 0, 3.0, 3.0),  # the target's prefill was over at 2.375
        ("compact", 1, 0, 3.0, 3.0),  # two nodes: too few to verify
        ("expand", 1, 0, 3.0, 4.0),
        ("send", 0, 0, 4.0, 4.125),
        *[("expand", 1, 0, 4.125 + n, 5.125 + n) for n in range(5)],
        ("wait", 0, 0, 9.125, 9.125),  # there since 8.25
        ("send", 0, 0, 9.125, 9.25),
        ("compact", 7, 0, 9.25, 9.25),
        *[("expand", 1, 0, 9.25 + n, 10.25 + n) for n in range(5)],
        ("wait", 0, 0, 14.25, 14.25),  # there since 13.375
    ]


def test_programs_that_wait_for_each_other_are_a_deadlock() -> None:
    def wait() -> Program:
        yield Receive()

    policy = Scripted(scripts={Role.TARGET: wait(), Role.DRAFT: wait()})
    with pytest.raises(RuntimeError, match="deadlock: target and draft wait"):
        simulate_one(policy, constant_profile(expand_s=1.0, verify_s=1.0), chain_trace(num_tokens=1))


def test_forward_is_slower_only_beside_a_peer_that_works() -> None:
    def target() -> Program:
        yield from TargetForward(())  # the draft works too
        yield from TargetForward(())  # the draft waits
        yield Send(Stop())

    def draft() -> Program:
        yield Prefill(Role.DRAFT, (0,))
        yield Receive()

    profile = constant_profile(expand_s=1.0, verify_s=2.0, prefill_s=1.0, busy_factor=1.5)
    policy = Scripted(scripts={Role.TARGET: target(), Role.DRAFT: draft()})
    timeline = simulate_one(policy, profile, chain_trace(num_tokens=1))
    assert [(s.start_s, s.end_s) for s in timeline.phase(Phase.VERIFY)] == [(0.0, 3.0), (3.0, 5.0)]


def test_a_draft_that_waited_finds_its_weights_gone() -> None:
    warm = constant_profile(expand_s=1.0, verify_s=5.0)
    cold = [s.model_copy(update={"cold": True, "quantiles_s": (1.25,) * 20}) for s in warm.steps if s.phase == "expand"]
    profile = warm.model_copy(update={"steps": (*warm.steps, *cold)})
    timeline = simulate_one(SerialChain(num_draft_tokens=2), profile, chain_trace(num_tokens=5))
    seconds = [span.end_s - span.start_s for span in timeline.phase(Phase.EXPAND)]
    # Its prefill ended when the first round began; the target's verification lies before the next one.
    assert seconds == [1.0, 1.0, 1.25, 1.0]


def test_a_draft_in_between_evicts_the_targets_weights() -> None:
    warm = constant_profile(expand_s=1.0, verify_s=5.0)
    cold = [s.model_copy(update={"cold": True, "quantiles_s": (8.0,) * 20}) for s in warm.steps if s.phase == "verify"]
    profile = warm.model_copy(update={"steps": (*warm.steps, *cold)})
    for policy, verify_s in ((SerialChain(num_draft_tokens=2), 8.0), (Autoregressive(), 5.0)):
        timeline = simulate_one(policy, profile, chain_trace(num_tokens=6))
        assert {span.end_s - span.start_s for span in timeline.phase(Phase.VERIFY)} == {verify_s}


def test_a_prompt_is_a_pause_that_the_next_forwards_pay_for() -> None:
    cost = WarmUpCost(
        role=Role.TARGET, degree=1, rows=(1,), extra_s=(0.25,), left=0.5, evicted_s=0.1, provenance=Provenance.MEASURED
    )
    profile = constant_profile(expand_s=0.1, verify_s=1.0, prefill_s=2.0).model_copy(update={"warm_up": (cost,)})
    trace = synthesise_trace((0.5,), prompt_lengths=(32,), num_tokens=5, seed=0)
    (timeline,) = simulate(Autoregressive(), degrees={Role.TARGET: 1}, profile=profile, trace=trace)
    seconds = [span.end_s - span.start_s for span in timeline.phase(Phase.VERIFY)]
    assert seconds == pytest.approx([1.25, 1.125, 1.0625, 1.03125])
    (elsewhere,) = simulate(Autoregressive(), degrees={Role.TARGET: 2}, profile=profile, trace=trace)
    assert {span.end_s - span.start_s for span in elsewhere.phase(Phase.VERIFY)} == {1.0}


def test_a_target_that_waits_for_its_draft_pays_for_a_pause_in_every_round() -> None:
    cost = WarmUpCost(
        role=Role.TARGET, degree=1, rows=(3,), extra_s=(0.25,), left=0.5, evicted_s=0.1, provenance=Provenance.MEASURED
    )
    profile = constant_profile(expand_s=1e-3, verify_s=1.0).model_copy(update={"warm_up": (cost,)})
    timeline = simulate_one(MineDraft(num_draft_tokens=2), profile, chain_trace(num_tokens=9))
    verifications = timeline.phase(Phase.VERIFY)
    pauses_s = [after.start_s - before.end_s for before, after in pairwise(verifications)]
    assert min(pauses_s) == pytest.approx(2e-3)
    assert all(span.end_s - span.start_s > 1.001 for span in verifications[1:])


def test_host_time_before_a_forward_lies_between_spans_and_is_the_span_elsewhere() -> None:
    host = {Phase.EXPAND: 0.5, Phase.VERIFY: 0.25, Phase.COMMIT: 0.125, Phase.COMPACT: 0.0625}
    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=2.0, host_s=host)
    timeline = simulate_one(SerialChain(num_draft_tokens=1), profile, chain_trace(num_tokens=3))
    spans = [(s.phase.value, s.start_s, s.end_s) for s in timeline.spans if s.start_s >= 4][:5]
    assert spans == [
        ("expand", 4.5, 5.5),
        ("verify", 5.75, 10.75),
        ("commit", 10.75, 10.875),
        ("compact", 10.875, 10.9375),
        ("compact", 10.9375, 11.0),
    ]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_busy_idle_and_host_time_add_up(policy: Policy) -> None:
    host = {Phase.EXPAND: 0.05, Phase.VERIFY: 0.07, Phase.SEND: 0.1, Phase.COMPACT: 0.02, Phase.COMMIT: 0.01}
    profile = constant_profile(expand_s=1.0, verify_s=5.0, host_s={**host, Phase.WAIT: 0.3})
    trace = synthesise_trace(RANKS, prompt_lengths=(4,), num_tokens=60, seed=2)
    timeline = simulate_one(policy, profile, trace)
    for role in Role:
        if spans := timeline.of(role):
            assert all(left.end_s <= right.start_s for left, right in pairwise(spans))
            thinking_s = sum(host[s.phase] for s in spans if s.phase in (Phase.EXPAND, Phase.VERIFY))
            assert sum(s.end_s - s.start_s for s in spans) + thinking_s == pytest.approx(spans[-1].end_s)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_replay_gives_the_traced_output(policy: Policy) -> None:
    trace = synthesise_trace(RANKS, prompt_lengths=(1, 2, 40), num_tokens=50, seed=3)
    recorded = Recorded(policy=policy)
    Simulator(machine_profile(), trace).run(recorded, degrees=SPLIT)  # type: ignore[arg-type]  # it has no search space
    assert recorded.outputs == [prompt.target_tokens.tolist() for prompt in trace.prompts]


@settings(max_examples=60, deadline=None)
@given(
    policy=st.one_of(
        st.builds(
            SerialTree,
            verify_rows=st.integers(2, 12),
            expand_rows=st.integers(1, 5),
            expansions=st.integers(1, 5),
            num_candidates=st.integers(1, 4),
        ),
        st.builds(
            SwiftSpec,
            verify_rows=st.integers(2, 12),
            expand_rows=st.integers(1, 5),
            num_candidates=st.integers(1, 4),
            tree_capacity=st.integers(12, 60),
        ),
    ),
    expand_s=st.floats(0.01, 3),
    hop_s=st.floats(0.001, 5),
    seed=st.integers(0, 10_000),
)
def test_replay_gives_the_traced_output_whatever_the_shape_and_speed(
    policy: Policy, expand_s: float, hop_s: float, seed: int
) -> None:
    trace = synthesise_trace((0.5, 0.2, 0.1), prompt_lengths=(3,), num_tokens=24, seed=seed)
    profile = constant_profile(expand_s=expand_s, verify_s=1.0, host_s={Phase.WAIT: hop_s, Phase.COMPACT: 0.1})
    recorded = Recorded(policy=policy)
    Simulator(profile, trace).run(recorded, degrees=SPLIT, seed=seed)  # type: ignore[arg-type]  # no search space
    assert recorded.outputs == [trace.prompts[0].target_tokens.tolist()]


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_serial_chain_follows_the_closed_form(acceptance: float) -> None:
    profile = constant_profile(expand_s=1.0, verify_s=5.0)
    trace = chain_trace(num_tokens=4000, acceptance=acceptance, prompts=2, seed=1)
    metrics = measure(simulate(SerialChain(num_draft_tokens=4), degrees=SPLIT, profile=profile, trace=trace))
    assert metrics.figures.round_s.median == metrics.figures.round_s.p95 == 9.0
    assert metrics.figures.tokens_per_round == pytest.approx(chain_tokens(acceptance, 4), rel=0.03)


def test_serial_tree_with_time_enough_is_the_best_static_tree() -> None:
    profile = constant_profile(expand_s=1.0, verify_s=5.0)
    trace = synthesise_trace(RANKS, prompt_lengths=(4,) * 4, num_tokens=1500, seed=1)
    policy = SerialTree(verify_rows=8, expand_rows=4, expansions=6, num_candidates=3, draft_temperature=1.0)
    metrics = measure(simulate(policy, degrees=SPLIT, profile=profile, trace=trace))
    assert metrics.figures.tokens_per_round == pytest.approx(best_tree_tokens(RANKS, 8), rel=0.03)


def test_swiftspec_on_a_chain_follows_the_closed_form() -> None:
    """A bonus token after three accepted ones is the draft's own next token with probability a; any other never is."""
    acceptance, verify_s, expand_s, hop_s = 0.8, 10.0, 1.0, 0.01
    profile = constant_profile(expand_s=expand_s, verify_s=verify_s, host_s={Phase.WAIT: hop_s})
    policy = SwiftSpec(verify_rows=4, expand_rows=1, num_candidates=1, tree_capacity=64)
    trace = chain_trace(num_tokens=4000, acceptance=acceptance, prompts=2, seed=1)
    metrics = measure(simulate(policy, degrees=SPLIT, profile=profile, trace=trace))
    assert metrics.hit_fraction == pytest.approx(acceptance**4, abs=0.02)
    assert metrics.figures.tokens_per_round == pytest.approx(chain_tokens(acceptance, 3), rel=0.03)
    least_s = verify_s + 2 * hop_s + (1 - acceptance**4) * 3 * expand_s
    assert least_s * 0.98 <= metrics.mean_round_s <= (least_s + expand_s) * 1.02  # a verdict waits for an expansion


def test_no_policy_beats_the_best_tree_or_the_speed_of_light() -> None:
    trace = synthesise_trace(RANKS, prompt_lengths=(4,) * 2, num_tokens=2000, seed=1)
    simulator = Simulator(constant_profile(expand_s=0.1, verify_s=5.0), trace)
    for policy in (p for p in POLICIES if p.target_rows == 6):
        metrics = measure(simulator.run(policy, degrees=SPLIT).timelines)
        assert metrics.figures.tokens_per_round <= best_tree_tokens(RANKS, 6) * 1.03
        assert metrics.light_fraction <= 1


def test_same_seed_gives_the_same_timelines_and_another_seed_others() -> None:
    trace = synthesise_trace(RANKS, prompt_lengths=(4, 9), num_tokens=40, seed=1)
    first, again, other = (
        simulate(SwiftSpec(), degrees=SPLIT, profile=machine_profile(), trace=trace, seed=seed) for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_requests_follow_each_other_on_one_clock() -> None:
    profile = constant_profile(expand_s=1.0, verify_s=5.0)
    trace = synthesise_trace(RANKS, prompt_lengths=(4, 9, 5), num_tokens=10, seed=1)
    timelines = simulate(SwiftSpec(), degrees=SPLIT, profile=profile, trace=trace, prompt_indices=(2, 0))
    assert [timeline.request for timeline in timelines] == ["synthetic-2", "synthetic-0"]
    assert [timeline.start_s for timeline in timelines] == [0.0, max(span.end_s for span in timelines[0].spans)]


def test_a_prompt_meets_the_same_luck_in_any_company() -> None:
    trace = synthesise_trace(RANKS, prompt_lengths=(4, 9, 5), num_tokens=40, seed=1)
    simulator = Simulator(machine_profile(), trace)
    (alone,) = simulator.run(SwiftSpec(), degrees=SPLIT, prompt_indices=(1,), seed=3).timelines
    among = simulator.run(SwiftSpec(), degrees=SPLIT, seed=3).timelines[1]
    assert among.e2e_s == pytest.approx(alone.e2e_s)
    assert [span.phase for span in among.spans] == [span.phase for span in alone.spans]


def test_missing_group_is_an_error() -> None:
    profile, trace = constant_profile(expand_s=1.0, verify_s=5.0), chain_trace(num_tokens=2)
    with pytest.raises(ValueError, match="degrees has no draft; swiftspec is disaggregated"):
        simulate(SwiftSpec(), degrees={Role.TARGET: 1}, profile=profile, trace=trace)


def test_unknown_prompt_is_an_error() -> None:
    profile, trace = constant_profile(expand_s=1.0, verify_s=5.0), chain_trace(num_tokens=2)
    with pytest.raises(ValueError, match="prompt_indices has 1; expected one of the trace's 1"):
        simulate(Autoregressive(), degrees={Role.TARGET: 1}, profile=profile, trace=trace, prompt_indices=(1,))
