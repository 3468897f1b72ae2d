"""Requests that share device groups have the outputs that each has alone, whatever happens between them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import POLICIES, Request, make_policy
from swiftspec.policies.effects import (
    Commit,
    ForwardKind,
    KeepKV,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Stop,
    TargetForward,
    prefill,
)
from swiftspec.policies.scoring import PromptScoring
from swiftspec.scheduler.asks import Grant, Step, equal_shares
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Controller
from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.costs import RoundCosts
from swiftspec.scheduler.group import Group
from swiftspec.timing.step_costs import ForwardCost, StepCosts
from tests.policies.fakes import FakeDraft, drafts, requests
from tests.scheduler.scripted import serve

RIGID = ("pearl", "specbranch", "amusd", "dsi", "mirror")


@pytest.mark.parametrize("name", POLICIES)
def test_elastic_policies_say_so(name: str) -> None:
    assert POLICIES[name].elastic == (name not in RIGID)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)  # requests are served until they end, whatever disturbs them
@given(
    draft=drafts(),
    asked=st.lists(requests(), min_size=1, max_size=5),
    max_running=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_every_output_is_the_solo_output(
    name: str, draft: FakeDraft, asked: list[Request], max_running: int, seed: int
) -> None:
    policy = make_policy(name)
    for served in serve(policy, asked, draft=draft, rng=random.Random(seed), max_running=max_running):
        whole = draft.target.output(served.request)
        if served.is_cancelled:
            assert served.output == whole[: len(served.output)]
        else:
            assert served.is_done
            assert served.output == whole


@dataclass(frozen=True)
class Whimsical:
    """A control that decides at random, from nothing to everything."""

    learns: ClassVar[bool] = True
    weighs_drafts: ClassVar[bool] = False
    rng: random.Random

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        wanted = [self.rng.choice((1, self.rng.randint(1, 1 + len(each.survival)))) for each in demands]
        return equal_shares(wanted, max_rows)


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in RIGID])
@settings(max_examples=40, deadline=None)  # requests are served until they end, whatever is decided
@given(
    draft=drafts(),
    asked=st.lists(requests(), min_size=1, max_size=5),
    max_running=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_no_control_changes_an_output(
    name: str, draft: FakeDraft, asked: list[Request], max_running: int, seed: int
) -> None:
    policy, rng = make_policy(name), random.Random(seed)
    costs = StepCosts(verify=ForwardCost(rows=(1,), seconds=(1.0,)))

    def control(max_rows: int) -> Controller:
        return Controller(Whimsical(rng), costs, max_rows=max_rows, num_first=rng.choice((0, 2)), explore_every=7)

    for served in serve(policy, asked, draft=draft, rng=rng, max_running=max_running, control=control):
        whole = draft.target.output(served.request)
        assert served.output == (whole[: len(served.output)] if served.is_cancelled else whole)


def program_of_three() -> Program:
    yield from prefill(Role.TARGET, (1, 2, 3))
    choices = yield from TargetForward((Row(4, 3, 0), Row(5, 4, 1)))
    yield Commit(choices)
    yield KeepKV(Role.TARGET, (), 0)
    yield Receive()


def waits() -> Program:
    yield Receive()


def asking() -> Group:
    """A group of which one program asks for its prefill, while another waits."""
    group = Group(BatchLimits(prefill_rows=2))
    group.add(7, program_of_three(), is_elastic=True)
    group.add(8, waits(), is_elastic=True)
    for program, answer in group.ready():
        effect = group.resume(program, answer, now_s=0.0)
        assert isinstance(effect, Receive) == (program == 8)
        if isinstance(effect, Receive):
            group.block(program, effect)
    return group


def test_whoever_is_alone_is_computed_whole() -> None:
    group = asking()
    group.remove(8)
    step = group.choose(0.0)
    assert isinstance(step, Step)
    assert step.grants == (Grant(7, 3),)


def test_a_prompt_is_computed_in_chunks_and_answered_once() -> None:
    group = asking()
    pieces = []
    while isinstance(step := group.choose(0.0), Step):
        ((_, effect),) = group.begin(step, now_s=0.0)
        if not isinstance(effect, Prefill):
            break
        pieces.append(effect)
        group.finish(step, {7: 9})
        for program, answer in group.ready():
            assert answer == 9
            group.resume(program, answer, now_s=0.0)
    assert pieces == [Prefill(Role.TARGET, (1, 2)), Prefill(Role.TARGET, (3,), 2)]


def test_a_scored_prompt_is_computed_in_chunks_with_what_follows_each_token() -> None:
    group = Group(BatchLimits(prefill_rows=3))
    request = Request(prompt=tuple(range(10, 19)), max_new_tokens=1)
    for number in range(2):
        group.add(number, PromptScoring(num_candidates=2).programs(request)[Role.TARGET], is_elastic=False)
    for number, answer in group.ready():
        group.resume(number, answer, now_s=0.0)
    pieces: list[Prefill] = []
    while isinstance(step := group.choose(0.0), Step):
        pieces += [part for number, part in group.begin(step, now_s=0.0) if number == 1 and isinstance(part, Prefill)]
        group.finish(step, dict.fromkeys(range(2)))
    assert sum((piece.tokens for piece in pieces), ()) == request.prompt[:-1]
    assert all(piece.scored == tuple(token + 1 for token in piece.tokens) for piece in pieces)
    assert [piece.position + 10 for piece in pieces] == [piece.tokens[0] for piece in pieces]
    assert len(pieces) > 1


def test_a_verification_may_be_answered_for_its_first_rows() -> None:
    group = asking()
    for _ in range(2):
        step = group.choose(0.0)
        assert isinstance(step, Step)
        group.finish(step, {7: None})
    ((program, answer),) = list(group.ready())
    group.resume(program, answer, now_s=0.0)
    step = Step(model=Role.TARGET, kind=ForwardKind.EXACT, grants=(Grant(7, 1),))
    ((_, effect),) = group.begin(step, now_s=0.0)
    assert effect == TargetForward((Row(4, 3, 0),))
    group.finish(step, {7: (8,)})
    ((program, answer),) = list(group.ready())
    assert group.resume(program, answer, now_s=0.0) == Commit((8,))


def test_a_removed_program_is_gone_wherever_it_stood() -> None:
    group = asking()
    step = group.choose(0.0)
    assert isinstance(step, Step)
    group.remove(8)
    group.remove(7)
    group.finish(step, {7: None})
    assert not group.has_ready
    assert len(group) == 0
    assert group.choose(1.0) is None


def test_a_program_that_waits_for_a_message_goes_on_with_it() -> None:
    def waits() -> Program:
        message = yield Receive()
        assert message == Stop()

    group = Group(BatchLimits())
    group.add(0, waits(), is_elastic=False)
    ((program, answer),) = list(group.ready())
    effect = group.resume(program, answer, now_s=0.0)
    assert isinstance(effect, Receive)
    group.block(program, effect)
    assert dict(group.receiving) == {0: effect}
    group.unblock(0, Stop())
    ((program, answer),) = list(group.ready())
    assert group.resume(program, answer, now_s=0.0) is None
    assert 0 not in group
