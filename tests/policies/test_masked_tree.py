"""The tree of products, against products made by hand and against a plain enumeration."""

from collections.abc import Sequence
from math import exp, log

import pytest

from swiftspec.policies.tree import Candidates, KeptSlots, Row, Subtree
from swiftspec.policies.trees.masked_tree import MaskedTree

MASK = 99


def shares(**share: float) -> Candidates:
    """Tokens by letters: a is 1, b is 2, .."""
    return Candidates(tuple(ord(letter) - 96 for letter in share), tuple(map(log, share.values())))


def make(*, num_masks: int = 2, num_leaves: int = 1, capacity: int = 12, temperature: float = 1.0) -> MaskedTree:
    return MaskedTree(
        7,
        position=5,
        capacity=capacity,
        mask_token=MASK,
        num_masks=num_masks,
        num_leaves=num_leaves,
        temperature=temperature,
    )


def started() -> MaskedTree:
    """The root and two masks were forwarded."""
    tree = make()
    tree.pick(1)
    tree.grow((shares(a=0.7, b=0.2), shares(c=0.6, d=0.3), shares(e=0.9, f=0.1)))
    tree.compact()
    return tree


def paths(subtree: Subtree) -> list[str]:
    found = [""]
    for token, parent in zip(subtree.tokens[1:], subtree.parents[1:], strict=True):
        found.append(found[parent] + chr(96 + token))
    return found[1:]


def grow(tree: MaskedTree, rows: Sequence[Row], *answers: Candidates) -> None:
    assert len(rows) == len(answers)
    tree.grow(answers)
    tree.compact()


def test_first_forward_is_the_root_and_its_masks() -> None:
    tree = make()
    assert tree.is_bare
    assert tree.pick(1) == (Row(7, 5, 0b0), Row(MASK, 6, 0b1), Row(MASK, 7, 0b11))
    tree.grow((shares(a=0.7), shares(c=0.6), shares(e=0.9)))
    assert tree.compact() == KeptSlots((0,), 0)
    assert (tree.num_slots, tree.is_bare) == (1, False)


def test_scores_are_products_of_marginals() -> None:
    # a .7, ac .42, ace .378, ad .21, b .2, ade .189, bc .12, bce .108, acf .042
    assert paths(started().best(9)) == ["a", "ac", "ace", "ad", "b", "ade", "bc", "bce"]
    assert paths(started().best(10))[-1] in ("bd", "acf")  # .06 and .042
    assert paths(started().best(10))[-1] == "bd"
    assert paths(started().best(99, least_probability=0.2)) == ["a", "ac", "ace", "ad", "b"]
    assert len(started().best(99).tokens) == 1 + 2 + 4 + 8
    tree = started()
    probabilities = [exp(each) for each in tree.path_log_probs(tree.best(8))]
    assert probabilities == pytest.approx([0.7, 0.42, 0.378, 0.21, 0.2, 0.189, 0.12][: len(probabilities)], abs=1e-6)


def test_a_forwarded_node_has_candidates_of_its_own_and_its_siblings_the_marginals() -> None:
    tree = started()
    rows = tree.pick(2)
    # The best two: a, and c below it; masks below c, the leaf.
    assert rows == (
        Row(1, 6, 0b1),
        Row(3, 7, 0b11),
        Row(MASK, 8, 0b111),
        Row(MASK, 9, 0b1111),
    )
    grow(tree, rows, shares(d=0.5, c=0.4), shares(f=0.8), shares(g=1.0), shares(h=0.5))
    # a .7, ad .35, ac .28 (its own), b .2; below d, of which nothing more is known, the marginals of its position.
    assert paths(tree.best(5)) == ["a", "ad", "ade", "ac"]  # .7 .35 .315 .28
    assert paths(tree.best(8)) == ["a", "ad", "ade", "ac", "acf", "acfg", "b"]  # .224 .224 .2


def test_masks_go_below_the_best_leaves() -> None:
    tree = make(num_masks=1, num_leaves=2)
    tree.pick(1)
    tree.grow((shares(a=0.6, b=0.4), shares(c=0.9, d=0.1)))
    tree.compact()
    # a .6, ac .54, b .4 are tokens; c and b are leaves.
    assert tree.pick(3) == (
        Row(1, 6, 0b1),
        Row(3, 7, 0b11),
        Row(2, 6, 0b1),
        Row(MASK, 8, 0b111),
        Row(MASK, 7, 0b1001),
    )


def test_a_verdict_on_marginals_forwards_its_path_first_and_what_follows_with_it() -> None:
    tree = started()
    tree.advance((1, 3))
    assert tree.compact() == KeptSlots((0,), 1)
    assert tree.is_bare
    assert paths(tree.best(3)) == ["e", "f"]
    # 1 is verified, 3 the root; masks below the root first, although e is a leaf.
    rows = tree.pick(2)
    assert rows == (Row(1, 6, 0b0), Row(3, 7, 0b1), Row(5, 8, 0b11), Row(MASK, 8, 0b11), Row(MASK, 9, 0b1011))
    tree.grow((shares(z=1.0), shares(f=0.9, e=0.1), shares(g=1.0), shares(h=0.5), shares(i=0.5)))
    assert tree.compact() == KeptSlots((0, 1, 2), 1)
    # f .9; below f the new marginal, below e its own candidate.
    assert paths(tree.best(99)) == ["f", "fh", "fhi", "e", "eg", "egi"]


def test_after_a_miss_only_marginals_are_left() -> None:
    tree = started()
    tree.advance((26,))
    assert tree.compact() == KeptSlots((0,), 1)
    assert tree.is_bare
    assert paths(tree.best(99)) == ["c", "ce", "d", "de", "cf", "df"]  # .6 .54 .3 .27 .06 .03


def test_survivors_keep_their_candidates_and_slots_in_order() -> None:
    tree = started()
    grow(tree, tree.pick(3), *[shares(a=0.5), shares(b=0.5), shares(c=0.5), shares(d=1.0), shares(e=1.0)])
    assert tree.num_slots == 4
    before = paths(tree.best(99))
    tree.advance((1,))
    kept = tree.compact()
    assert kept.num_verified == 1
    assert kept.slots[0] == 0
    assert list(kept.slots) == sorted(kept.slots)
    assert paths(tree.best(99)) == [path[1:] for path in before if path[:1] == "a" and path != "a"]


def test_a_declined_forward_leaves_no_trace() -> None:
    tree = started()
    before = tree.best(12)
    rows = tree.pick(4)
    tree.put_back()
    assert (tree.best(12), tree.num_slots) == (before, 1)
    assert tree.pick(4) == rows


def test_a_temperature_sharpens_marginals_too() -> None:
    tree = make(temperature=0.5)
    tree.pick(1)
    tree.grow((shares(a=0.6, b=0.4), shares(c=0.6, d=0.4), shares(e=1.0)))
    # Squares, of their sum: a .692, b .308; ac .479, ad .213, bc .213
    assert paths(tree.best(99, least_probability=0.3)) == ["a", "ac", "ace", "b"]
    assert paths(tree.best(99, least_probability=0.31)) == ["a", "ac", "ace"]


def test_nodes_stay_within_the_capacity_and_a_long_path_waits() -> None:
    tree = make(capacity=3)
    tree.pick(1)
    tree.grow((shares(a=0.7), shares(c=0.6), shares(e=0.9)))
    tree.compact()
    assert [row.token for row in tree.pick(9)] == [1, 3, MASK, MASK]
    tree.grow((shares(c=0.5), shares(d=0.5), shares(e=1.0), shares(f=1.0)))
    tree.compact()
    assert not tree.can_grow
    tree.advance((26, 25, 24, 23))
    assert tree.compact() == KeptSlots((0,), 1)
    assert tree.pick(9) == (Row(26, 6, 0b0), Row(25, 7, 0b1), Row(24, 8, 0b11))  # the root waits, so no masks
    tree.grow((shares(a=1.0),) * 3)
    assert tree.compact() == KeptSlots((0, 1, 2), 3)
    assert tree.pick(1)[0] == Row(23, 9, 0b0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"capacity": 1}, "capacity is 1; a miss alone needs 2 tree slots"),
        ({"temperature": 0.0}, "temperature is 0.0; expected a positive number"),
    ],
)
def test_impossible_trees_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**fields)
