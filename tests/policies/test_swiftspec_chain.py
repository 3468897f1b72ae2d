"""SwiftSpec for a target that verifies chains: its tree is as good as its best path."""

from typing import Any

import pytest

from swiftspec.policies.asynchronous.swiftspec_chain import SwiftSpecChain
from swiftspec.policies.tree import Candidates, Subtree, TokenTree


def tree() -> TokenTree:
    """Root 1, below it 2 and 3, below 2 the tokens 4 and 5; nothing is known below 4."""
    grown = TokenTree(1, position=7, capacity=16)
    grown.pick(1)
    grown.grow([Candidates((2, 3), (-0.5, -1.0))])
    grown.pick(1)
    grown.grow([Candidates((4, 5), (-0.1, -3.0))])
    return grown


@pytest.mark.parametrize(("rows", "tokens"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 4)), (9, (1, 2, 4))])
def test_the_best_chain_follows_the_likeliest_candidates(rows: int, tokens: tuple[int, ...]) -> None:
    assert tree().best_chain(rows) == Subtree.chain(7, tokens)


def test_the_best_chain_of_a_bare_root_is_the_root() -> None:
    assert TokenTree(1, position=7, capacity=16).best_chain(4) == Subtree.chain(7, (1,))


def test_what_a_verdict_leaves_of_the_tree_is_the_next_chain() -> None:
    grown = tree()
    assert grown.advance((2, 5))
    assert grown.best_chain(4) == Subtree.chain(9, (5,))
    other = tree()
    assert other.advance((2,))
    assert other.best_chain(4) == Subtree.chain(8, (2, 4))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0; expected at least 1"),
        ({"least_draft_tokens": 7}, r"least_draft_tokens is 7; expected at most num_draft_tokens \(6\)"),
        ({"tree_capacity": 6}, "tree_capacity is 6; expected at least 7"),
        ({"draft_temperature": 0.0}, "draft_temperature is 0.0; expected a positive number"),
    ],
)
def test_a_shape_out_of_range_is_refused(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwiftSpecChain(**shape)
