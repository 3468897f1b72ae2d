import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.effects import (
    Candidates,
    Commit,
    DraftForward,
    KeepKV,
    PeerError,
    Prefill,
    Receive,
    Row,
    Send,
    Stop,
    Subtree,
    TargetForward,
    Verdict,
)
from swiftspec.policies.tree import TokenTree
from swiftspec.policies.verification import expand, follow, verify_rounds
from tests.policies.scripted import run_alone


def successor(row: Row) -> int:
    return row.token + 1


@given(
    tokens=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    num_generated=st.integers(0, 9),
    eos=st.frozensets(st.integers(0, 5), max_size=2),
)
def test_clip_cuts_behind_the_first_end_of_sequence_and_at_the_limit(
    tokens: list[int], num_generated: int, eos: frozenset[int]
) -> None:
    request = Request(prompt=(1,), max_new_tokens=10, eos_token_ids=eos)
    output, finished = [7] * num_generated, False
    for token in tokens:
        if not finished:
            output.append(token)
            finished = token in eos or len(output) == 10
    assert request.clip(tokens, num_generated=num_generated) == (tuple(output[num_generated:]), finished)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "message"),
    [((), 5, "prompt is empty; at least one token is needed"), ((1,), 0, "max_new_tokens is 0; expected at least 1")],
)
def test_impossible_requests_are_refused(prompt: tuple[int, ...], max_new_tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(prompt=prompt, max_new_tokens=max_new_tokens)


def test_root_is_the_last_prompt_token() -> None:
    assert Request(prompt=(4, 5, 6), max_new_tokens=1).root_position == 2


@pytest.mark.parametrize(
    ("choices", "path", "tokens"),
    [
        ((9, 0, 0, 0), (0,), (9,)),
        ((2, 0, 9, 0), (0, 2), (2, 9)),
        ((2, 0, 1, 9), (0, 2, 3), (2, 1, 9)),  # token 1 below 2, not the 1 below the root
        ((1, 9, 9, 9), (0, 1), (1, 9)),
    ],
)
def test_follow_walks_along_the_targets_choices(
    choices: tuple[int, ...], path: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    subtree = Subtree(3, (0, 1, 2, 1), (-1, 0, 0, 2))
    assert follow(subtree, choices) == (path, tokens)


def test_expand_forwards_the_best_leaves_and_hangs_their_candidates_below() -> None:
    tree = TokenTree(1, position=0, capacity=8)
    for answer in (Candidates((2, 3), (-0.5, -1.0)), Candidates((4,), (-0.125,))):
        step = expand(tree, 1, 2)
        effect = next(step)
        assert isinstance(effect, DraftForward)
        assert effect.num_candidates == 2
        with pytest.raises(StopIteration):
            step.send((answer,))
    assert tree.best(9) == Subtree(0, (1, 2, 4, 3), (-1, 0, 1, 0))


def test_target_sends_its_verdict_before_anything_else_it_does_with_it() -> None:
    request = Request(prompt=(1, 2), max_new_tokens=5)
    subtrees = [Subtree(1, (2, 3, 9), (-1, 0, 0)), Subtree(3, (4, 5, 6), (-1, 0, 1))]
    effects = list(run_alone(verify_rounds(request, max_rows=3), messages=subtrees, target=successor))
    assert [type(effect) for effect in effects] == [
        *[Prefill, Send, Receive],
        *[TargetForward, Send, Commit, KeepKV, Receive],
        *[TargetForward, Send, Commit],
    ]
    assert [effect.message for effect in effects if isinstance(effect, Send)] == [Verdict(()), Verdict((3, 4)), Stop()]
    assert [effect.tokens for effect in effects if isinstance(effect, Commit)] == [(3, 4), (5, 6, 7)]


@pytest.mark.parametrize(
    "nonsense", [Stop(), Verdict((5,)), Subtree(1, (2, 3), (-1, 0)), Subtree(3, (4, 5, 6, 7), (-1, 0, 1, 2))]
)
def test_target_refuses_what_it_cannot_verify(nonsense: Stop | Verdict | Subtree) -> None:
    request = Request(prompt=(1, 2), max_new_tokens=5)
    messages = [Subtree(1, (2, 3, 9), (-1, 0, 0)), nonsense]  # then token 4 at position 3 is the root
    with pytest.raises(PeerError, match="under token 4 at position 3"):
        list(run_alone(verify_rounds(request, max_rows=3), messages=messages, target=successor))
