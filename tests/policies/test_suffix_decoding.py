"""Suffix trees by hand and against counting, and the policy that drafts from them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.effects import Commit, KeepKV, Prefill, Role, Row, TargetForward
from swiftspec.policies.lookup.known_text import SuffixTree
from swiftspec.policies.lookup.speculation import Bounds, Speculation
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from tests.policies.fakes import FakeTarget, Path, requests
from tests.policies.scripted import drive, run_alone
from tests.policies.test_prompt_lookup import Periodic

EVERYTHING = {"max_spec_factor": 100.0, "min_token_prob": 1e-9}  # nothing is too unlikely

shapes = st.builds(
    SuffixDecoding,
    verify_rows=st.integers(2, 12),
    branches=st.integers(1, 3),
    max_tree_depth=st.integers(2, 9),
    max_spec_factor=st.sampled_from((0.5, 1.0, 4.0)),
    min_token_prob=st.sampled_from((0.1, 0.5, 1.0)),
)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple)


def tree(*text: int, max_depth: int = 24) -> SuffixTree:
    made = SuffixTree(max_depth)
    made.extend(text)
    return made


def test_continuation_of_a_single_occurrence_is_certain() -> None:
    # 1 2 3 occurred once before, and 4 5 6 followed: three tokens at one for each token of the match.
    text = tree(1, 2, 3, 4, 5, 6, 7, 1, 2, 3)
    assert text.speculate(Bounds(8, max_spec_factor=1.0, min_token_prob=0.1)) == Speculation((4, 5, 6), (-1, 0, 1), 3.0)
    assert text.speculate(Bounds(2, max_spec_factor=1.0, min_token_prob=0.1)) == Speculation((4, 5), (-1, 0), 2.0)
    assert text.speculate(Bounds(8, max_spec_factor=2.0, min_token_prob=0.1)).tokens == (4, 5, 6, 7, 1, 2)
    assert text.speculate(Bounds(8, max_spec_factor=0.5, min_token_prob=0.1)).tokens == (4,)


def test_frequencies_multiply_along_a_path() -> None:
    # After 1: 2 four times, 3 once. After 1 2: 5 three times, 6 once.
    text = tree(1, 2, 5, 1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 3, 0, 9, 1)
    chain = text.speculate(Bounds(2, max_spec_factor=2.0, min_token_prob=0.1))
    assert chain.tokens == (2, 5)
    assert chain.score == pytest.approx(4 / 5 + 4 / 5 * 3 / 4)
    likely = text.speculate(Bounds(2, max_spec_factor=2.0, min_token_prob=0.7))
    assert likely.tokens == (2,)
    assert likely.score == pytest.approx(4 / 5)
    # A tree adds the next best nodes: 0.8, 0.6, then 3 and 6 with 0.2 each.
    spread = text.speculate(Bounds(3, max_spec_factor=3.0, min_token_prob=0.1, branches=2))
    assert spread.tokens[:2] == (2, 5)
    assert spread.score == pytest.approx(0.8 + 0.6 + 0.6)  # 5 was always followed by 1
    assert text.speculate(Bounds(3, max_spec_factor=3.0, min_token_prob=0.61, branches=2)).tokens == (2,)


def test_the_match_of_best_score_is_chosen() -> None:
    # 7 1 was followed by 2, which is the longer match; but 1 alone was followed by 3 4 four times of five.
    text = tree(7, 1, 2, 1, 3, 4, 1, 3, 4, 1, 3, 4, 1, 3, 4, 7, 1)
    assert text.speculate(Bounds(8, max_spec_factor=0.5, min_token_prob=0.1)).tokens == (
        2,
    )  # room for the longer match only
    assert text.speculate(Bounds(1, max_spec_factor=1.0, min_token_prob=0.1)).tokens == (2,)
    assert text.speculate(Bounds(8, max_spec_factor=2.0, min_token_prob=0.1)).tokens == (2, 1, 3, 4)


def test_of_equally_frequent_continuations_the_latest_is_first() -> None:
    assert tree(1, 2, 1, 3, 1).speculate(Bounds(1, max_spec_factor=1.0, min_token_prob=0.1)).tokens == (3,)


def test_nothing_follows_what_is_new() -> None:
    assert tree(1, 2, 3).speculate(Bounds(8, max_spec_factor=1.0, min_token_prob=0.1)) == Speculation()


@settings(deadline=None)
@given(text=texts, depth=st.integers(2, 6), branches=st.integers(1, 4))
def test_score_is_that_of_counted_strings(text: Path, depth: int, branches: int) -> None:
    found = tree(*text, max_depth=depth).speculate(Bounds(depth, branches=branches, **EVERYTHING))
    matches = [text[-length:] for length in range(1, depth) if count(text[:-1], text[-length:])]
    assert bool(found.tokens) == bool(matches)
    paths: list[Path] = []
    for index, (token, parent) in enumerate(zip(found.tokens, found.parents, strict=True)):
        assert -1 <= parent < index
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths)
    assert all(children <= branches for children in Counter(found.parents).values())
    scores = [sum(chance(text, match, path) for path in paths) for match in matches]
    assert not scores or found.score == pytest.approx(min(scores, key=lambda score: abs(score - found.score)))


def count(text: Path, part: Path) -> int:
    return sum(text[start : start + len(part)] == part for start in range(len(text)))


def chance(text: Path, match: Path, path: Path) -> float:
    """Product of the frequencies of a path's tokens after a match; an occurrence at the end is followed by none."""
    product = 1.0
    for length in range(len(path)):
        before = match + path[:length]
        followed = count(text[:-1], before)
        product *= count(text, (*before, path[length])) / followed if followed else 0.0
    return product


@settings(max_examples=200, deadline=None)
@given(shape=shapes, request=requests(), seed=st.integers(0, 2**16), periodic=st.booleans())
def test_output_is_the_targets_own(shape: SuffixDecoding, request: Request, seed: int, periodic: bool) -> None:
    target = Periodic(seed=seed) if periodic else FakeTarget(seed=seed)
    run = drive(shape, request, target=target, draft=None)
    assert run.output == target.output(request)
    assert all(len(event.effect.rows) <= shape.verify_rows for event in run.of(TargetForward))


def test_rounds_exactly() -> None:
    # The text counts 0 1 2 0 1 2 ..; 2 tokens match after the first choice, and two more are verified.
    request = Request(prompt=(0, 1, 2, 0), max_new_tokens=5)
    program = SuffixDecoding(verify_rows=4).programs(request)[Role.TARGET]
    effects = run_alone(program, target=lambda row: (row.token + 1) % 3, choice=1)
    assert list(effects) == [
        Prefill(Role.TARGET, (0, 1, 2, 0)),
        Commit((1,)),
        TargetForward((Row(1, 4, 0b0), Row(2, 5, 0b1), Row(0, 6, 0b11))),
        Commit((2, 0, 1)),
        KeepKV(Role.TARGET, (0, 1, 2), 3),
        TargetForward((Row(1, 7, 0b0), Row(2, 8, 0b1), Row(0, 9, 0b11), Row(1, 10, 0b111))),
        Commit((2,)),
    ]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"verify_rows": 1}, "verify_rows is 1; expected at least 2"),
        ({"branches": 0}, "branches is 0; expected at least 1"),
        ({"max_tree_depth": 1}, "max_tree_depth is 1; expected at least 2"),
        ({"max_spec_factor": 0.0}, "max_spec_factor is 0.0; expected a positive number"),
        ({"min_token_prob": 0.0}, "min_token_prob is 0.0; expected above 0 and at most 1"),
    ],
)
def test_impossible_shapes_are_refused(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SuffixDecoding(), **shape)


def test_search_space_holds_distinct_shapes() -> None:
    space = list(SuffixDecoding.search_space())
    assert len(set(space)) == len(space)
