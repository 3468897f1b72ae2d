"""Programs under a control: plain decoding while it declines to draft, the policy's own rounds while it does not."""

from collections.abc import Callable

import pytest

from swiftspec.policies import POLICIES, Layout, Request, make_policy
from swiftspec.policies.effects import (
    Candidates,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Prefill,
    Program,
    Role,
    Row,
    TargetForward,
)
from swiftspec.policies.steered import steered_programs

CHAIN = make_policy("serial_chain", num_draft_tokens=2)
May = Callable[[int], bool]  # number of the question, from 0, to whether to draft


def effects_of(program: Program, may: May) -> list[Effect]:
    """A program's effects. The target counts up; the draft is right about the next token and wrong after that."""
    effects: list[Effect] = []
    answer: object = None
    num_asked = 0
    while True:
        try:
            effects.append(program.send(answer))
        except StopIteration:
            return effects
        effect, answer = effects[-1], None
        if isinstance(effect, Prefill | DraftForward) and effect.level == 1:
            num_asked += 1
            if not may(num_asked - 1):
                answer = ()
                continue
        if isinstance(effect, Prefill):
            answer = effect.tokens[-1] + 1 if effect.role is Role.TARGET else None
        elif isinstance(effect, TargetForward):
            answer = tuple(row.token + 1 for row in effect.rows)
        elif isinstance(effect, DraftForward):
            wrong = effect.level > 1
            answer = tuple(Candidates((row.token + 1 + wrong,), (-0.1,)) for row in effect.rows)


def chain(request: Request) -> Program:
    return steered_programs(CHAIN, request)[Role.TARGET]


def test_whoever_never_drafts_decodes_plainly_and_asks_ever_more_seldom() -> None:
    request = Request(prompt=(1, 2, 3), max_new_tokens=33)
    effects = effects_of(chain(request), lambda _: False)
    asked = [index for index, effect in enumerate(effects) if isinstance(effect, Prefill) and effect.level]
    rounds = [sum(isinstance(effect, TargetForward) for effect in effects[:index]) for index in asked]
    assert rounds == [0, 1, 3, 7, 15, 23, 31]
    plain = make_policy("autoregressive").programs(request)[Role.TARGET]
    assert [effect for index, effect in enumerate(effects) if index not in asked] == effects_of(plain, lambda _: False)


def test_the_draft_reads_what_it_missed_once_it_may() -> None:
    effects = effects_of(chain(Request(prompt=(1, 2, 3), max_new_tokens=6)), lambda number: number in (1, 2, 3))
    assert effects == [
        Prefill(Role.TARGET, (1, 2, 3)),
        Commit((4,)),
        Prefill(Role.DRAFT, (1, 2, 3), level=1),  # declined
        TargetForward((Row(4, 3, 0),)),
        KeepKV(Role.TARGET, (0,), 1),
        Commit((5,)),
        Prefill(Role.DRAFT, (1, 2, 3, 4), level=1),
        DraftForward((Row(5, 4, 0),), 1, level=1),
        DraftForward((Row(6, 5, 1),), 1, level=2),
        TargetForward((Row(5, 4, 0), Row(6, 5, 1), Row(8, 6, 3)), (-0.1, -0.2)),
        Commit((6, 7)),
        KeepKV(Role.TARGET, (0, 1), 2),
        KeepKV(Role.DRAFT, (0, 1), 2),
        DraftForward((Row(7, 6, 0),), 1, level=1),
        DraftForward((Row(8, 7, 1),), 1, level=2),
        TargetForward((Row(7, 6, 0), Row(8, 7, 1), Row(10, 8, 3)), (-0.1, -0.2)),
        Commit((8, 9)),
    ]


def test_a_round_that_may_not_draft_ends_the_policys_program() -> None:
    effects = effects_of(chain(Request(prompt=(1, 2, 3), max_new_tokens=7)), lambda number: number in (0, 1, 4))
    declined: list[Effect] = [
        DraftForward((Row(6, 5, 0),), 1, level=1),
        TargetForward((Row(6, 5, 0),)),  # plain decoding again, with what the draft has read in its cache
        KeepKV(Role.TARGET, (0,), 1),
        Commit((7,)),
        Prefill(Role.DRAFT, (6,), 5, level=1),
        TargetForward((Row(7, 6, 0),)),
    ]
    start = effects.index(declined[0])
    assert effects[start : start + len(declined)] == declined
    assert sum(isinstance(effect, Prefill) and effect.role is Role.TARGET for effect in effects) == 1
    assert [token for effect in effects if isinstance(effect, Commit) for token in effect.tokens] == list(range(4, 11))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_only_who_drafts_beside_its_target_and_not_from_the_text_is_changed(name: str) -> None:
    policy = make_policy(name)
    request = Request(prompt=(1, 2, 3), max_new_tokens=4, mask_token=99)
    programs = steered_programs(policy, request)
    assert programs.keys() == policy.programs(request).keys()
    own, steered = (made[Role.TARGET].send(None) for made in (policy.programs(request), programs))
    is_changed = policy.layout is Layout.COLOCATED and policy.elastic and not policy.drafts_from_text
    assert (own != steered) == is_changed
