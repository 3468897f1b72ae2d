"""Policies of parallel drafts: output, number of forwards, masks that never stay."""

from itertools import pairwise
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import DraftKind, Policy, Request, make_policy
from swiftspec.policies.asynchronous.swiftspec_parallel import SwiftSpecParallel
from swiftspec.policies.base import check_draft
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.effects import (
    Candidates,
    Commit,
    DraftForward,
    KeepKV,
    Prefill,
    Role,
    Row,
    Send,
    Subtree,
    TargetForward,
    Verdict,
)
from swiftspec.policies.trees.parallel_tree import ParallelTree
from tests.policies.fakes import MASK_TOKEN, VOCAB_SIZE, FakeDraft, FakeParallelDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Schedule, drive, run_alone, schedules, subtree_paths


@st.composite
def asynchronous(draw: st.DrawFn) -> SwiftSpecParallel:
    verify_rows = draw(st.integers(2, 12))
    return SwiftSpecParallel(
        verify_rows=verify_rows,
        least_probability=draw(st.sampled_from((0.0, 0.0, 0.1, 0.6))),
        expand_nodes=draw(st.integers(1, 9)),
        expand_leaves=draw(st.integers(1, 3)),
        num_masks=draw(st.integers(1, 5)),
        num_candidates=draw(st.integers(1, VOCAB_SIZE - 1)),
        tree_capacity=verify_rows + draw(st.integers(0, 30)),
    )


def colocated() -> st.SearchStrategy[Policy]:
    trees = st.builds(
        ParallelTree,
        verify_rows=st.integers(2, 12),
        least_probability=st.sampled_from((0.0, 0.0, 0.1, 0.6)),
        num_masks=st.integers(1, 6),
        num_candidates=st.integers(1, VOCAB_SIZE - 1),
    )
    return trees | st.builds(ParallelChain, num_draft_tokens=st.integers(1, 8))


def parallel_drafts() -> st.SearchStrategy[FakeParallelDraft]:
    return st.builds(FakeParallelDraft, serial=drafts())


def knowing(target: FakeTarget) -> FakeParallelDraft:
    """A draft that is always right."""
    return FakeParallelDraft(serial=FakeDraft(target=target, ranks=(0,), steepness=4, seed=1))


@settings(max_examples=200, deadline=None)
@given(policy=asynchronous() | colocated(), request=requests(), draft=parallel_drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    policy: Policy, request: Request, draft: FakeParallelDraft, schedule: Schedule
) -> None:
    run = drive(policy, request, target=draft.target, draft=draft, schedule=schedule)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(policy=colocated(), request=requests(), draft=parallel_drafts())
def test_a_round_is_one_draft_forward_and_one_verification(
    policy: Policy, request: Request, draft: FakeParallelDraft
) -> None:
    run = drive(policy, request, target=draft.target, draft=draft)
    forwards = [type(event.effect) for event in run.events if isinstance(event.effect, DraftForward | TargetForward)]
    assert forwards == [DraftForward, TargetForward] * (len(forwards) // 2)


@settings(max_examples=100, deadline=None)
@given(policy=asynchronous(), request=requests(), draft=parallel_drafts(), schedule=schedules())
def test_masks_come_last_and_leave_at_once(
    policy: SwiftSpecParallel, request: Request, draft: FakeParallelDraft, schedule: Schedule
) -> None:
    run = drive(policy, request, target=draft.target, draft=draft, schedule=schedule)
    effects = [event.effect for event in run.by(Role.DRAFT)]
    for effect, after in pairwise(effects):
        if isinstance(effect, DraftForward):
            masked = [row.token == MASK_TOKEN for row in effect.rows]
            assert masked == sorted(masked)
            assert isinstance(after, KeepKV)
            assert list(after.slots) == list(range(len(after.slots)))  # in place
    for event in run.of(Send):
        if isinstance(event.effect.message, Subtree):
            assert MASK_TOKEN not in event.effect.message.tokens


@settings(max_examples=100, deadline=None)
@given(request=requests(), seed=st.integers(0, 99), schedule=schedules())
def test_one_forward_after_a_miss_gives_a_tree_as_deep_as_the_masks(
    request: Request, seed: int, schedule: Schedule
) -> None:
    policy = SwiftSpecParallel(verify_rows=7, num_masks=4, num_candidates=1, tree_capacity=20)
    draft = knowing(FakeTarget(seed=seed))
    run = drive(policy, request, target=draft.target, draft=draft, schedule=schedule)
    sends = [event for event in run.of(Send) if isinstance(event.effect.message, Subtree)]
    first, forwards = sends[0], run.of(DraftForward)
    assert max(map(len, subtree_paths(first.effect.message, first.known))) - len(first.known) >= 5
    assert len(forwards[0].effect.rows) == 5


def test_rounds_of_a_chain_exactly() -> None:
    # The target counts upwards to 4; the draft counts upwards too, and guesses one more for every mask.
    request = Request(prompt=(0, 1), max_new_tokens=6, eos_token_ids=frozenset({9}), mask_token=50)
    program = ParallelChain(num_draft_tokens=3).programs(request)[Role.TARGET]
    effects = run_alone(
        program,
        draft=lambda row: Candidates((row.position + 1,), (-0.5,)),
        target=lambda row: row.token + 1 if row.token < 4 else 9,
    )
    assert list(effects) == [
        Prefill(Role.TARGET, (0,)),
        Prefill(Role.DRAFT, (0,), level=1),
        DraftForward((Row(1, 1, 0b0), Row(50, 2, 0b1), Row(50, 3, 0b11)), 1, level=1),
        TargetForward((Row(1, 1, 0b0), Row(2, 2, 0b1), Row(3, 3, 0b11), Row(4, 4, 0b111))),
        Commit((2, 3, 4, 9)),
    ]


def test_chain_drops_masks_and_reads_accepted_tokens_with_the_next_masks() -> None:
    request = Request(prompt=(0, 1, 2, 3), max_new_tokens=6, mask_token=50)
    program = ParallelChain(num_draft_tokens=2).programs(request)[Role.TARGET]
    effects = run_alone(
        program,
        draft=lambda row: Candidates((row.position + 1,), (-0.5,)),
        target=lambda row: row.token + 1 if row.token != 4 else 20,
    )
    assert list(effects)[:9] == [
        Prefill(Role.TARGET, (0, 1, 2)),
        Prefill(Role.DRAFT, (0, 1, 2), level=1),
        DraftForward((Row(3, 3, 0b0), Row(50, 4, 0b1)), 1, level=1),
        TargetForward((Row(3, 3, 0b0), Row(4, 4, 0b1), Row(5, 5, 0b11))),
        Commit((4, 20)),
        KeepKV(Role.TARGET, (0, 1), 2),
        KeepKV(Role.DRAFT, (0,), 1),
        DraftForward((Row(4, 4, 0b0), Row(20, 5, 0b1), Row(50, 6, 0b11)), 1, level=1),
        TargetForward((Row(20, 5, 0b0), Row(6, 6, 0b1), Row(7, 7, 0b11))),
    ]


def test_unlikely_paths_are_not_verified() -> None:
    request = Request(prompt=(0, 1), max_new_tokens=3, mask_token=50)
    program = ParallelTree(verify_rows=8, num_masks=2, least_probability=0.3).programs(request)[Role.TARGET]
    effects = run_alone(
        program,
        draft=lambda row: Candidates((row.position + 1, 20), (log(0.6), log(0.35))),
        target=lambda row: 30,
    )
    # Of the products 0.6, 0.35, 0.36, 0.21, 0.216 .. three are large enough.
    (first, *_) = (effect for effect in effects if isinstance(effect, TargetForward))
    assert [row.token for row in first.rows] == [1, 2, 3, 20]


def test_a_draft_that_declines_every_round_leaves_plain_decoding() -> None:
    request = Request(prompt=(0, 1), max_new_tokens=4, mask_token=50)
    for policy in (ParallelChain(num_draft_tokens=3), ParallelTree(verify_rows=4)):
        program = policy.programs(request)[Role.TARGET]
        answer: object = None
        rows, output = [], list[int]()
        try:
            while True:
                effect = program.send(answer)
                answer = None
                if isinstance(effect, DraftForward) or (isinstance(effect, Prefill) and effect.level):
                    answer = ()
                elif isinstance(effect, TargetForward):
                    rows.append(len(effect.rows))
                    answer = tuple(row.token + 1 for row in effect.rows)
                elif isinstance(effect, Commit):
                    output += effect.tokens
        except StopIteration:
            pass
        assert (output, rows) == ([2, 3, 4, 5], [1, 1, 1, 1])


def test_a_hit_deep_in_the_tree_is_answered_at_once() -> None:
    policy = SwiftSpecParallel(verify_rows=2, expand_nodes=4, num_masks=1, num_candidates=1, tree_capacity=16)
    request = Request(prompt=(1,), max_new_tokens=9, mask_token=50)
    program = policy.programs(request)[Role.DRAFT]
    effects = list(
        run_alone(
            program,
            messages=[None, None, Verdict((1, 2))],
            draft=lambda row: Candidates((row.position + 1,), (-0.1,)),
        )
    )
    kinds = [type(effect) for effect in effects]
    assert kinds[-3:-1] == [Send, KeepKV]


@pytest.mark.parametrize("name", ["parallel_chain", "parallel_tree", "swiftspec_parallel"])
def test_a_serial_draft_is_refused(name: str) -> None:
    kinds = "parallel" if name == "swiftspec_parallel" else "parallel or block"
    with pytest.raises(ValueError, match=f"policy is {name}, which needs a {kinds} draft; this one is serial"):
        check_draft(make_policy(name), DraftKind.SERIAL)


@pytest.mark.parametrize("cls", [ParallelChain, ParallelTree, SwiftSpecParallel])
def test_search_space_holds_distinct_possible_shapes(cls: type[Policy]) -> None:
    space = list(cls.search_space())
    assert len(set(space)) == len(space) >= 8
    assert all(shape.expand_rows <= shape.draft_rows for shape in space)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("parallel_chain", {"num_draft_tokens": 0}, "num_draft_tokens is 0; expected at least 1"),
        ("parallel_tree", {"num_masks": 0}, "num_masks is 0; expected at least 1"),
        ("parallel_tree", {"least_probability": 1.0}, "least_probability is 1.0; expected at least 0 and below 1"),
        ("swiftspec_parallel", {"expand_leaves": 0}, "expand_leaves is 0; expected at least 1"),
        ("swiftspec_parallel", {"least_probability": 1.0}, "least_probability is 1.0; expected at least 0 and below 1"),
        ("swiftspec_parallel", {"tree_capacity": 7}, r"tree_capacity is 7; expected at least verify_rows \(8\)"),
    ],
)
def test_impossible_shapes_are_refused(name: str, fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(name, **fields)
