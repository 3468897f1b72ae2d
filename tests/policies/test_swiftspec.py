from collections.abc import Iterator
from dataclasses import replace
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.effects import (
    Candidates,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Message,
    PeerError,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Send,
    Stop,
    Subtree,
    TargetForward,
    Verdict,
)
from tests.policies.fakes import VOCAB_SIZE, FakeDraft, drafts, requests
from tests.policies.scripted import (
    Event,
    Run,
    Schedule,
    assert_best,
    drive,
    run_alone,
    schedules,
    scores_below,
    subtree_paths,
)


@st.composite
def shapes(draw: st.DrawFn) -> SwiftSpec:
    verify_rows = draw(st.integers(2, 12))
    return SwiftSpec(
        verify_rows=verify_rows,
        expand_rows=draw(st.integers(1, 9)),
        num_candidates=draw(st.integers(1, VOCAB_SIZE - 1)),
        tree_capacity=verify_rows + draw(st.integers(0, 40)),
    )


@st.composite
def choosy_shapes(draw: st.DrawFn) -> SwiftSpec:
    """Those that leave unlikely rows out, and those that grow deeper after a miss."""
    least_probability = draw(st.sampled_from((0.0, 0.01, 0.1, 0.4, 0.9)))
    return replace(draw(shapes()), least_probability=least_probability, miss_expansions=draw(st.integers(1, 4)))


def rounds(run: Run) -> Iterator[tuple[Event[Effect], list[Event[Effect]]]]:
    """The draft's rounds: the event that brought a verdict, and all events after it up to the next subtree's Send."""
    verdict, since = None, list[Event[Effect]]()
    for event in run.by(Role.DRAFT):
        if isinstance(event.answer, Verdict):
            verdict, since = event, []
        elif verdict is not None:
            since.append(event)
            if isinstance(event.effect, Send):
                yield verdict, since
                verdict = None


def forwards_before(run: Run, event: Event[Effect]) -> list[Event[DraftForward]]:
    until = [id(other) for other in run.events].index(id(event))
    return Run(events=run.events[:until]).of(DraftForward)


@settings(max_examples=400, deadline=None)
@given(shape=shapes() | choosy_shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    assert run.output == draft.target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_subtrees_are_the_best_of_the_whole_tree(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    shape = replace(shape, draft_temperature=1.0)  # then scores are plain sums of log-probs
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for verdict, since in rounds(run):
        sent = since[-1].effect
        assert isinstance(sent, Send)
        paths = subtree_paths(sent.message, verdict.known)
        scores = scores_below(verdict.known, forwards_before(run, since[-1]))
        assert len(paths) == shape.verify_rows
        assert_best(paths, scores, num_rows=shape.verify_rows)


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_next_subtree_takes_no_forward_if_enough_nodes_survive_and_one_after_a_miss(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for verdict, since in rounds(run):
        survivors = scores_below(verdict.known, forwards_before(run, verdict))
        kinds = [type(event.effect) for event in since]
        if len(survivors) >= shape.verify_rows:
            assert kinds == [Send]
        elif len(survivors) == 1 and shape.num_candidates >= shape.verify_rows - 1:
            assert kinds == [KeepKV, DraftForward, Send]
        else:
            assert len(kinds) >= 3
            assert kinds == [KeepKV, *[DraftForward] * (len(kinds) - 2), Send]


@settings(max_examples=100, deadline=None)
@given(shape=choosy_shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_unlikely_nodes_are_not_sent_and_likely_ones_are(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for verdict, since in rounds(run):
        sent = since[-1].effect
        assert isinstance(sent, Send)
        paths = subtree_paths(sent.message, verdict.known)
        scores = scores_below(verdict.known, forwards_before(run, since[-1]))
        likely = [score for score in scores.values() if score == 0.0 or exp(score) > shape.least_probability + 1e-9]
        assert_best(paths, scores, num_rows=len(paths))
        assert len(paths) >= min(shape.verify_rows, len(likely))
        assert all(exp(scores[path]) >= shape.least_probability - 1e-9 for path in paths)


@settings(max_examples=100, deadline=None)
@given(shape=choosy_shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_a_miss_takes_the_forwards_it_may(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    shape = replace(shape, tree_capacity=200)  # never in the way
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for verdict, since in rounds(run):
        survivors = scores_below(verdict.known, forwards_before(run, verdict))
        num_forwards = sum(isinstance(event.effect, DraftForward) for event in since)
        if len(survivors) == 1:
            assert num_forwards >= shape.miss_expansions
        elif shape.least_probability:
            assert num_forwards == 0


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_at_most_the_expansion_in_progress_delays_a_verdict(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    late = 0
    for event in run.by(Role.DRAFT):
        if isinstance(event.effect, Receive | Poll) and event.answer is not None:
            late = 0
        elif isinstance(event.effect, DraftForward):
            late += event.message_waiting
        assert late <= 1


@settings(max_examples=50, deadline=None)
@given(shape=shapes(), request=requests(), draft=drafts(), schedule=schedules())
def test_draft_waits_only_when_its_tree_is_full(
    shape: SwiftSpec, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule)
    for event in run.by(Role.DRAFT):
        if isinstance(event.effect, Receive):
            paths = {path for forward in forwards_before(run, event) for path in forward.paths}
            known = event.known[: len(event.known) - len(getattr(event.answer, "tokens", ()))]
            num_slots = sum(path[: len(known)] == known for path in paths)
            # After a miss one slot may be the path's.
            assert shape.tree_capacity - 1 <= num_slots <= shape.tree_capacity


# The worked example of the paper's section 3.1.2 (Fig. 2), four rows verified and two expanded: t1 is token 1, and so
# on. Token -> the draft's candidates.
FIGURE = {
    1: ((2, 3), (-0.25, -0.5)),
    2: ((4,), (-2.0,)),
    3: ((5, 6), (-0.375, -0.875)),
    5: ((7, 8), (-1.5, -2.0)),
    6: ((9, 10), (-0.125, -0.375)),
    9: ((11,), (-0.375,)),
    10: ((12,), (-1.5,)),
    11: ((13,), (-1.0,)),
    12: ((14, 15), (-1.0, -2.0)),
    16: ((17, 18), (-0.25, -0.5)),
    17: ((20, 19), (-0.375, -1.0)),
    18: ((21,), (-1.0,)),
}
FIGURE_SHAPE = SwiftSpec(verify_rows=4, expand_rows=2, num_candidates=2, tree_capacity=32, draft_temperature=1.0)


def figure_candidates(row: Row) -> Candidates:
    return Candidates(*FIGURE[row.token])


def test_worked_example_of_the_paper() -> None:
    program = FIGURE_SHAPE.programs(Request(prompt=(0, 1), max_new_tokens=8))[Role.DRAFT]
    messages = [None, None, Verdict(()), None, None, Verdict((3, 6)), None, Verdict((9, 16)), Stop()]
    effects = list(run_alone(program, messages=messages, draft=figure_candidates))
    assert [effect for effect in effects if not isinstance(effect, Poll)] == [
        Prefill(Role.DRAFT, (0,)),
        DraftForward((Row(1, 1, 0b0),), 2),
        DraftForward((Row(2, 2, 0b1), Row(3, 2, 0b1)), 2),
        # t1 .. t6 are there; t4 and t6 stay at home.
        Send(Subtree(1, (1, 2, 3, 5), (-1, 0, 0, 2))),
        KeepKV(Role.DRAFT, (0, 1, 2), 0),
        # Meanwhile t7 .. t12 grow.
        DraftForward((Row(5, 3, 0b101), Row(6, 3, 0b101)), 2),
        DraftForward((Row(9, 4, 0b10101), Row(10, 4, 0b10101)), 2),
        # A hit on t6, which was not sent: no forward before the next subtree. t1 and t3 join the prefix.
        Send(Subtree(3, (6, 9, 10, 11), (-1, 0, 0, 1))),
        KeepKV(Role.DRAFT, (0, 2, 4, 5, 6), 2),
        DraftForward((Row(11, 5, 0b011), Row(12, 5, 0b101)), 2),
        # A miss on t16: the path stays, the rest goes, and t17 .. t21 grow.
        KeepKV(Role.DRAFT, (0, 1), 2),
        DraftForward((Row(16, 5, 0b0),), 2),
        DraftForward((Row(17, 6, 0b1), Row(18, 6, 0b1)), 2),
        Send(Subtree(5, (16, 17, 18, 20), (-1, 0, 0, 1))),
    ]
    assert effects[-1] == Poll()  # which brought the stop


def test_target_of_the_worked_example() -> None:
    own = {1: 3, 3: 6, 6: 9, 9: 16, 16: 17, 17: 20, 20: 0}
    request = Request(prompt=(0, 1), max_new_tokens=8, eos_token_ids=frozenset({20}))
    subtrees = [
        Subtree(1, (1, 2, 3, 5), (-1, 0, 0, 2)),
        Subtree(3, (6, 9, 10, 11), (-1, 0, 0, 1)),
        Subtree(5, (16, 17, 18, 20), (-1, 0, 0, 1)),
    ]
    program = FIGURE_SHAPE.programs(request)[Role.TARGET]
    effects = list(run_alone(program, messages=subtrees, target=lambda row: own.get(row.token, 99)))
    assert effects == [
        Prefill(Role.TARGET, (0,)),
        Send(Verdict(())),
        Receive(),
        TargetForward((Row(1, 1, 0), Row(2, 2, 0b1), Row(3, 2, 0b1), Row(5, 3, 0b101))),
        Send(Verdict((3, 6))),
        Commit((3, 6)),
        KeepKV(Role.TARGET, (0, 2), 2),
        Receive(),
        TargetForward((Row(6, 3, 0), Row(9, 4, 0b1), Row(10, 4, 0b1), Row(11, 5, 0b11))),
        Send(Verdict((9, 16))),
        Commit((9, 16)),
        KeepKV(Role.TARGET, (0, 1), 2),
        Receive(),
        TargetForward((Row(16, 5, 0), Row(17, 6, 0b1), Row(18, 6, 0b1), Row(20, 7, 0b11))),
        # The end of the sequence lies inside the tree.
        Send(Stop()),
        Commit((17, 20)),
    ]


def chain(row: Row) -> Candidates:
    """After any token its successor is likely, and a token of another kind is not."""
    return Candidates((row.token + 1, row.token + 100), (-0.125, -4.0))


def draft_program(shape: SwiftSpec) -> Program:
    return shape.programs(Request(prompt=(1,), max_new_tokens=99))[Role.DRAFT]


def test_hit_on_a_node_grown_while_the_target_verified_takes_no_forward() -> None:
    shape = SwiftSpec(verify_rows=3, expand_rows=1, num_candidates=2, tree_capacity=16)
    messages = [None, None, Verdict(()), None, None, None, Verdict((2, 3, 4)), Stop()]
    effects = list(run_alone(draft_program(shape), messages=messages, draft=chain))
    assert [effect for effect in effects if not isinstance(effect, Poll)] == [
        DraftForward((Row(1, 0, 0b0),), 2),
        DraftForward((Row(2, 1, 0b1),), 2),
        Send(Subtree(0, (1, 2, 3), (-1, 0, 1))),
        KeepKV(Role.DRAFT, (0, 1), 0),
        DraftForward((Row(3, 2, 0b11),), 2),  # brings the 4 that the target will choose
        DraftForward((Row(4, 3, 0b111),), 2),
        DraftForward((Row(5, 4, 0b1111),), 2),
        Send(Subtree(3, (4, 5, 6), (-1, 0, 1))),
        KeepKV(Role.DRAFT, (0, 1, 2, 3, 4), 3),
    ]


def test_path_without_kv_and_the_missed_token_share_one_forward() -> None:
    shape = SwiftSpec(verify_rows=3, expand_rows=1, num_candidates=2, tree_capacity=16)
    messages = [None, Verdict(()), Verdict((2, 7)), Stop()]
    effects = list(run_alone(draft_program(shape), messages=messages, draft=chain))
    assert [effect for effect in effects if not isinstance(effect, Poll)] == [
        DraftForward((Row(1, 0, 0b0),), 2),
        Send(Subtree(0, (1, 2, 101), (-1, 0, 0))),
        KeepKV(Role.DRAFT, (0,), 0),
        # 2 was sent and accepted as a bare leaf; 7 is in no tree.
        KeepKV(Role.DRAFT, (0,), 1),
        DraftForward((Row(2, 1, 0b0), Row(7, 2, 0b1)), 2),
        Send(Subtree(2, (7, 8, 107), (-1, 0, 0))),
    ]


def test_verdict_that_is_there_at_once_is_answered_after_a_single_forward() -> None:
    shape = SwiftSpec(verify_rows=3, expand_rows=1, num_candidates=2, tree_capacity=16)
    effects = list(run_alone(draft_program(shape), messages=[Verdict(()), Stop()], draft=chain))
    kinds = [type(effect) for effect in effects]
    assert kinds == [Poll, KeepKV, DraftForward, Send, Poll]


def test_full_tree_waits_for_the_verdict_and_sends_what_it_has() -> None:
    shape = SwiftSpec(verify_rows=2, expand_rows=4, num_candidates=1, tree_capacity=2)
    messages = [None, None, Verdict(()), Stop()]
    effects = list(run_alone(draft_program(shape), messages=messages, draft=chain))
    assert [type(effect) for effect in effects[:5]] == [Poll, DraftForward, Poll, DraftForward, Receive]


def test_stop_ends_the_draft_wherever_it_comes() -> None:
    shape = SwiftSpec(verify_rows=3, expand_rows=1, num_candidates=2, tree_capacity=4)
    for num_expansions in range(8):
        messages: list[Message | None] = [None] * min(num_expansions, 4)
        effects = list(run_alone(draft_program(shape), messages=[*messages, Stop()], draft=chain))
        assert isinstance(effects[-1], Poll if num_expansions < 4 else Receive)


@pytest.mark.parametrize("message", [Subtree(0, (1,), (-1,)), "verdict", ()])
def test_draft_refuses_what_is_no_verdict(message: Message) -> None:
    with pytest.raises(PeerError, match="expected a verdict"):
        list(run_alone(draft_program(SwiftSpec()), messages=[message], draft=chain))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"verify_rows": 1}, "verify_rows is 1; expected at least 2"),
        ({"expand_rows": 0}, "expand_rows is 0; expected at least 1"),
        ({"num_candidates": -1}, "num_candidates is -1; expected at least 1"),
        ({"tree_capacity": 7}, r"tree_capacity is 7; expected at least verify_rows \(8\)"),
    ],
)
def test_impossible_shapes_are_refused(shape: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwiftSpec(**shape)


def test_search_space_holds_distinct_possible_shapes() -> None:
    space = list(SwiftSpec.search_space())
    assert len(set(space)) == len(space) >= 20
    assert all(shape.target_rows == shape.verify_rows and shape.draft_rows == shape.tree_capacity for shape in space)
