"""Earlier outputs against counting, their bound, and what policies make of them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import POLICIES, Request
from swiftspec.policies.effects import TargetForward
from swiftspec.policies.lookup.earlier_outputs import EarlierOutputs
from swiftspec.policies.lookup.known_text import SharedOutputs
from swiftspec.policies.lookup.speculation import Bounds, Speculation
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.policies.lookup.suffix_or_draft import SuffixOrDraft
from tests.policies.fakes import VOCAB_SIZE, FakeDraft, FakeTarget, Path, drafts, requests
from tests.policies.scripted import drive

texts = st.lists(st.integers(0, 2), max_size=14).map(tuple)


def kept(*outputs: Path, most: int = 100, max_depth: int = 24) -> EarlierOutputs:
    made = EarlierOutputs(most, max_depth)
    for output in outputs:
        made.add(output)
    made.settle()
    return made


def count(outputs: Sequence[Path], part: Path) -> int:
    return sum(
        output[start : start + len(part)] == part for output in outputs for start in range(len(output) - len(part) + 1)
    )


def counted_chain(outputs: Sequence[Path], text: Path, bounds: Bounds, max_depth: int) -> Speculation:
    """The best chain by counting in every output."""
    best = Speculation()
    for length in range(min(len(text), max_depth - 1), 0, -1):
        match, chain, product, score = text[-length:], list[int](), 1.0, 0.0
        room = min(bounds.max_tokens, int(length * bounds.max_spec_factor), max_depth - length)
        while len(chain) < room:
            followed = {token: count(outputs, (*match, *chain, token)) for token in range(3)}
            total = sum(followed.values())
            most = max(followed.values())
            if not total or most / total < bounds.min_token_prob / product:
                break
            # Of equals, whatever first followed latest.
            tied = [token for token in followed if followed[token] == most]
            chain.append(max(tied, key=lambda token: first_seen(outputs, (*match, *chain, token))))
            product *= most / total
            score += product
        if score > best.score + 1e-12:
            best = Speculation(tuple(chain), tuple(range(-1, len(chain) - 1)), score)
    return best


def first_seen(outputs: Sequence[Path], part: Path) -> tuple[int, int]:
    return next(
        (number, start)
        for number, output in enumerate(outputs)
        for start in range(len(output))
        if output[start : start + len(part)] == part
    )


@settings(max_examples=150, deadline=None)
@given(
    outputs=st.lists(texts, max_size=8), text=texts, depth=st.integers(2, 7), factor=st.sampled_from((0.5, 1.0, 9.0))
)
def test_speculation_is_that_of_counting(outputs: list[Path], text: Path, depth: int, factor: float) -> None:
    bounds = Bounds(5, max_spec_factor=factor, min_token_prob=0.2113)  # no product of frequencies is as much
    found = kept(*outputs, max_depth=depth).speculate(text, bounds)
    expected = counted_chain(outputs, text, bounds, depth)
    assert found.score == pytest.approx(expected.score)
    assert (found.tokens, found.parents) == (expected.tokens, expected.parents)


@settings(max_examples=100, deadline=None)
@given(outputs=st.lists(texts, min_size=1, max_size=12), most=st.integers(1, 4), depth=st.integers(2, 7))
def test_only_the_latest_outputs_are_counted(outputs: list[Path], most: int, depth: int) -> None:
    made = kept(*outputs, most=most, max_depth=depth)
    assert len(made) == min(most, len(outputs))
    latest = outputs[-most:]
    every = Bounds(3, max_spec_factor=99.0, min_token_prob=1e-9, branches=3)
    for text in {output[:stop] for output in outputs for stop in range(1, len(output) + 1)}:
        found = made.speculate(text, replace(every, max_tokens=1))  # the best share of any match
        matches = [text[-length:] for length in range(1, depth) if length <= len(text)]
        assert found.score == pytest.approx(max(best_share(latest, match) for match in matches))


def best_share(outputs: Sequence[Path], match: Path) -> float:
    followed = [count(outputs, (*match, token)) for token in range(3)]
    return max(followed) / sum(followed) if any(followed) else 0.0


def test_an_output_of_many_tokens_is_entered_and_removed_in_pieces() -> None:
    long, next_one = tuple(range(1000)), tuple(range(2000, 2100))
    made = EarlierOutputs(1, 24)
    made.add(long)
    bounds = Bounds(4, max_spec_factor=4.0, min_token_prob=0.1)
    found = [made.speculate((number,), bounds).tokens for number in (0, 0, 990)]
    assert found == [(1, 2, 3, 4), (1, 2, 3, 4), ()]  # some tokens at each look-up, and not the last ones yet
    made.settle()
    assert made.speculate((990,), bounds).tokens == (991, 992, 993, 994)
    made.add(next_one)
    made.speculate((0,), bounds)
    assert made.speculate((2000,), bounds).tokens == (2001, 2002, 2003, 2004)
    made.settle()
    assert [made.speculate((number,), bounds) for number in (0, 990)] == [Speculation()] * 2


def test_no_match_and_no_continuation_reaches_over_an_end() -> None:
    made = kept((1, 2), (3, 4))
    bounds = Bounds(4, max_spec_factor=4.0, min_token_prob=0.1)
    assert made.speculate((1,), bounds).tokens == (2,)
    assert made.speculate((1, 2), bounds) == Speculation()
    assert made.speculate((2, 3), bounds).tokens == (4,)  # 3 matches alone
    assert made.speculate((2, 3), bounds).score == 1.0


outputs_of_all = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30).map(tuple), max_size=4)
policies: st.SearchStrategy[SuffixDecoding | SuffixOrDraft] = st.builds(
    SuffixDecoding,
    verify_rows=st.integers(2, 9),
    branches=st.integers(1, 3),
    max_spec_factor=st.sampled_from((1.0, 4.0)),
    earlier_outputs=st.integers(1, 3),
) | st.builds(
    SuffixOrDraft,
    num_draft_tokens=st.integers(1, 4),
    least_score=st.sampled_from((0.3, 2.0)),
    max_spec_factor=st.sampled_from((1.0, 4.0)),
    earlier_outputs=st.integers(1, 3),
)


@settings(max_examples=150, deadline=None)
@given(policy=policies, request=requests(), draft=drafts(), outputs=outputs_of_all, is_own=st.booleans())
def test_output_is_the_targets_own_whatever_others_said(
    policy: SuffixDecoding | SuffixOrDraft, request: Request, draft: FakeDraft, outputs: list[Path], is_own: bool
) -> None:
    """Nonsense, ends of sequence, or the very output that is to come."""
    expected = draft.target.output(request)
    earlier = SharedOutputs().known_to(policy)
    assert earlier is not None
    for output in (*outputs, *([expected] if is_own else [])):
        earlier.add(output)
    run = drive(policy, replace(request, earlier=earlier), target=draft.target, draft=draft)
    assert run.output == expected
    assert len(earlier) == min(policy.earlier_outputs, len(outputs) + is_own + 1)


@pytest.mark.parametrize("policy", [SuffixDecoding(earlier_outputs=2), SuffixOrDraft(earlier_outputs=2)], ids=str)
def test_a_repeated_request_takes_fewer_rounds(policy: SuffixDecoding | SuffixOrDraft) -> None:
    target = FakeTarget(seed=1)
    draft = FakeDraft(target=target, ranks=(None,), steepness=4, seed=1)
    request = Request(prompt=(1, 2, 3), max_new_tokens=32)
    shared = SharedOutputs()

    def num_rounds(policy: SuffixDecoding | SuffixOrDraft, tenant: int = 0) -> int:
        asked = replace(request, earlier=shared.known_to(policy, tenant))
        return len(drive(policy, asked, target=target, draft=draft).of(TargetForward))

    first, again = num_rounds(policy), num_rounds(policy)
    assert again < 0.5 * first
    assert num_rounds(policy, tenant=1) == first, "tenants do not see each other's outputs"
    assert num_rounds(replace(policy, earlier_outputs=0)) == first


def test_a_continued_request_adds_its_whole_output() -> None:
    target, policy = FakeTarget(seed=1), SuffixDecoding(earlier_outputs=1)
    whole = Request(prompt=(1, 2, 3), max_new_tokens=12)
    output = target.output(whole)
    earlier = EarlierOutputs(1, policy.max_tree_depth)
    rest = replace(whole, prompt=(*whole.prompt, *output[:5]), max_new_tokens=7, num_output=5, earlier=earlier)
    drive(policy, rest, target=target, draft=None)
    earlier.settle()
    found = earlier.speculate(output[:5], Bounds(20, max_spec_factor=20.0, min_token_prob=0.5))
    assert found.tokens == output[5:]
    assert (
        earlier.speculate(whole.prompt, Bounds(20, max_spec_factor=20.0, min_token_prob=0.99)).tokens[:5] != output[:5]
    )


def test_nothing_is_kept_for_policies_that_search_none() -> None:
    shared = SharedOutputs()
    assert [shared.known_to(policy()) for policy in POLICIES.values()] == [None] * len(POLICIES)
    assert not shared
    with pytest.raises(ValueError, match="earlier_outputs is -1; expected at least 0"):
        SuffixDecoding(earlier_outputs=-1)
