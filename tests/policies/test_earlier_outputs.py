"""Earlier outputs against counting, and their bound."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies.earlier_outputs import EarlierOutputs
from swiftspec.policies.speculation import Bounds, Speculation
from tests.policies.fakes import Path

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
            if not total or most / total < bounds.min_token_prob / product - 1e-12:
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


@settings(max_examples=300, deadline=None)
@given(
    outputs=st.lists(texts, max_size=8), text=texts, depth=st.integers(2, 7), factor=st.sampled_from((0.5, 1.0, 9.0))
)
def test_speculation_is_that_of_counting(outputs: list[Path], text: Path, depth: int, factor: float) -> None:
    bounds = Bounds(5, max_spec_factor=factor, min_token_prob=0.2)
    found = kept(*outputs, max_depth=depth).speculate(text, bounds)
    expected = counted_chain(outputs, text, bounds, depth)
    assert found.score == pytest.approx(expected.score)
    assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
