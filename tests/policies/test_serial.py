from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Candidates, Commit, DraftForward, KeepKV, Prefill, Role, Row, TargetForward
from tests.policies.fakes import VOCAB_SIZE, FakeDraft, FakeTarget, Path, drafts, requests
from tests.policies.scripted import Run, assert_best, drive, run_alone, scores_below


@st.composite
def trees(draw: st.DrawFn) -> SerialTree:
    return SerialTree(
        verify_rows=draw(st.integers(2, 12)),
        expand_rows=draw(st.integers(1, 6)),
        expansions=draw(st.integers(1, 5)),
        num_candidates=draw(st.integers(1, VOCAB_SIZE - 1)),
    )


def chains() -> st.SearchStrategy[SerialChain]:
    return st.builds(SerialChain, num_draft_tokens=st.integers(1, 8))


@settings(max_examples=400, deadline=None)
@given(policy=trees() | chains(), request=requests(), draft=drafts())
def test_output_is_the_targets_own_under_any_acceptance(policy: Policy, request: Request, draft: FakeDraft) -> None:
    run = drive(policy, request, target=draft.target, draft=draft)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=trees(), request=requests(), draft=drafts())
def test_verified_rows_are_the_best_of_the_whole_tree(shape: SerialTree, request: Request, draft: FakeDraft) -> None:
    shape = replace(shape, draft_temperature=1.0)  # then scores are plain sums of log-probs
    run = drive(shape, request, target=draft.target, draft=draft)
    for event in run.of(TargetForward):
        before = Run(events=run.events[: [id(other) for other in run.events].index(id(event))])
        scores = scores_below(event.known, before.of(DraftForward))
        assert event.paths[0] == event.known
        assert len(event.paths) == min(shape.verify_rows, len(scores))
        assert_best(event.paths, scores, num_rows=shape.verify_rows)
        assert event.effect.log_probs == pytest.approx([scores[path] for path in event.paths[1:]])


def test_which_rows_a_ratio_tested_request_has_verified_does_not_depend_on_what_was_drafted() -> None:
    target = FakeTarget(seed=5)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    request = Request(prompt=(1, 2), max_new_tokens=9, ratio_tested=True)
    run = drive(SerialTree(), request, target=target, draft=draft)
    assert {event.effect.log_probs for event in run.of(TargetForward)} == {()}


@settings(max_examples=50, deadline=None)
@given(shape=trees(), request=requests(), draft=drafts())
def test_round_is_its_expansions_then_one_verification(shape: SerialTree, request: Request, draft: FakeDraft) -> None:
    run = drive(shape, request, target=draft.target, draft=draft)
    forwards = [event.effect for event in run.events if isinstance(event.effect, DraftForward | TargetForward)]
    bounds = [-1, *[index for index, effect in enumerate(forwards) if isinstance(effect, TargetForward)]]
    for start, end in pairwise(bounds):
        assert 0 <= end - start - 1 <= shape.expansions
    assert bounds[1] == shape.expansions


def test_draft_that_outruns_the_target_fills_its_slots_and_not_one_more() -> None:
    # At most two of a round's rows are accepted while twelve nodes grow: survivors pile up to the bound.
    target = FakeTarget(seed=3)

    def draft(path: Path, num_candidates: int) -> Candidates:
        wanted = target(path)
        return Candidates((wanted, wanted + 1), (-0.001, -5.0))

    shape = SerialTree(verify_rows=2, expand_rows=3, expansions=4, num_candidates=2)
    request = Request(prompt=(1,), max_new_tokens=40)
    run = drive(shape, request, target=target, draft=draft)
    num_slots = [0]
    for event in run.events:
        if isinstance(event.effect, DraftForward):
            num_slots.append(num_slots[-1] + len(event.effect.rows))
        elif isinstance(event.effect, KeepKV) and event.effect.role is Role.DRAFT:
            num_slots.append(len(event.effect.slots) - event.effect.num_verified)
    assert run.output == target.output(request)
    assert max(num_slots) == shape.draft_rows == 26


def test_rounds_of_a_chain_exactly() -> None:
    # The draft counts upwards; so does the target, up to 4.
    request = Request(prompt=(0, 1), max_new_tokens=6, eos_token_ids=frozenset({9}))
    program = SerialChain(num_draft_tokens=2).programs(request)[Role.TARGET]
    effects = run_alone(
        program,
        draft=lambda row: Candidates((row.token + 1,), (-0.5,)),
        target=lambda row: row.token + 1 if row.token < 4 else 9,
    )
    assert list(effects) == [
        Prefill(Role.TARGET, (0,)),
        Prefill(Role.DRAFT, (0,), level=1),
        DraftForward((Row(1, 1, 0b0),), 1, level=1),
        DraftForward((Row(2, 2, 0b1),), 1, level=2),
        TargetForward((Row(1, 1, 0b0), Row(2, 2, 0b1), Row(3, 3, 0b11)), (-0.5, -1.0)),
        Commit((2, 3, 4)),
        KeepKV(Role.TARGET, (0, 1, 2), 3),
        KeepKV(Role.DRAFT, (0, 1), 2),
        # 3 was accepted without having been forwarded; it goes with the new root.
        DraftForward((Row(3, 3, 0b0), Row(4, 4, 0b1)), 1, level=1),
        DraftForward((Row(5, 5, 0b11),), 1, level=2),
        TargetForward((Row(4, 4, 0b0), Row(5, 5, 0b1), Row(6, 6, 0b11)), (-0.5, -1.0)),
        Commit((9,)),
    ]


def test_chain_is_a_tree_of_one_candidate() -> None:
    chain = SerialChain(num_draft_tokens=5)
    assert (chain.target_rows, chain.draft_rows) == (6, 12)
    assert chain.layout is Layout.COLOCATED
    assert list(chain.programs(Request(prompt=(1,), max_new_tokens=1))) == [Role.TARGET]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"verify_rows": 1}, "verify_rows is 1; expected at least 2"),
        ({"expand_rows": 0}, "expand_rows is 0; expected at least 1"),
        ({"expansions": 0}, "expansions is 0; expected at least 1"),
        ({"num_candidates": 0}, "num_candidates is 0; expected at least 1"),
    ],
)
def test_impossible_trees_are_refused(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SerialTree(**shape)


def test_chain_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens is 0; expected at least 1"):
        SerialChain(num_draft_tokens=0)


@pytest.mark.parametrize("policy", [SerialTree, SerialChain])
def test_search_space_holds_distinct_possible_shapes(policy: type[Policy]) -> None:
    space = list(policy.search_space())
    assert len(set(space)) == len(space) >= 10
    assert all(shape.draft_rows >= shape.target_rows - 1 for shape in space)
