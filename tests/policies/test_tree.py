import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies.tree import Candidates, KeptSlots, Row, Subtree, TokenTree, at_temperature
from tests.policies.scripted import subtree_paths

Tokens = tuple[int, ...]  # a node, by the tokens from the first root to it


class PlainTree:
    """The same tree without any cleverness: every forward ever done, by path; slots as a list of paths."""

    def __init__(self, root: int) -> None:
        self.root: Tokens = (root,)
        self.num_prefix = 0  # verified tokens whose KV is in the prefix
        self.answers: dict[Tokens, Candidates] = {}
        self.slots: list[Tokens] = []

    def scores(self) -> dict[Tokens, float]:
        """All nodes under the root with their cumulative log-probs."""
        scores = {self.root: 0.0}
        waiting = [self.root]
        while waiting:
            path = waiting.pop()
            for token, logprob in zip(*self.answers.get(path, ((), ())), strict=True):
                scores[(*path, token)] = scores[path] + logprob
                waiting.append((*path, token))
        return scores

    def path_of(self, row: Row) -> Tokens:
        """Tokens that a row sees, the prefix first, itself last."""
        seen = [path for slot, path in enumerate(self.slots) if row.ancestors >> slot & 1]
        path = (*self.root[: self.num_prefix], *[path[-1] for path in seen], row.token)
        assert seen == [path[:length] for length in range(self.num_prefix + 1, len(path))]
        assert row.position == len(path) - 1
        return path

    def keep(self, kept: KeptSlots) -> None:
        """Moves of the caches, checked against the expected ones."""
        paths = [self.slots[slot] for slot in kept.slots]
        assert paths[: kept.num_verified] == [path for path in self.slots if path in prefixes(self.root)[:-1]]
        tree = paths[kept.num_verified :]
        assert sorted(tree) == sorted(path for path in self.slots if path[: len(self.root)] == self.root)
        assert all(path[:-1] in tree[:index] for index, path in enumerate(tree) if path != self.root)
        self.slots = tree
        self.num_prefix += kept.num_verified


def prefixes(path: Tokens) -> list[Tokens]:
    return [path[: length + 1] for length in range(len(path))]


def grow(
    tree: TokenTree, plain: PlainTree, num_rows: int, *, tree_slots: int, answer: Callable[[], Candidates]
) -> None:
    """One expansion of both, and that the rows are the best leaves there are, on their own paths."""
    scores, unforwarded = plain.scores(), plain.root not in plain.slots
    rows = tree.pick(num_rows)
    paths = []
    for row in rows:
        paths.append(plain.path_of(row))
        plain.slots.append(paths[-1])
    if unforwarded:
        assert paths == prefixes(plain.root)[plain.num_prefix :][:tree_slots]
    else:
        assert len(paths) <= num_rows
        leaves = sorted((score for path, score in scores.items() if path not in plain.answers), reverse=True)
        assert [scores[path] for path in paths] == leaves[: len(paths)]
        assert all(path not in plain.answers for path in paths)
    answers = [answer() for _ in rows]
    tree.grow(answers)
    # The rows before a missed root are verified: their candidates are of no use.
    plain.answers |= {path: a for path, a in zip(paths, answers, strict=True) if len(path) >= len(plain.root)}


def some_candidates(rng: random.Random, num: int) -> Candidates:
    logprobs = sorted((-rng.randrange(48) / 16 for _ in range(num)), reverse=True)
    return Candidates(tuple(rng.sample(range(9), num)), tuple(logprobs))


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    capacity=st.integers(2, 24),
    num_candidates=st.integers(1, 5),
    rounds=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 4), st.booleans()), max_size=8),
)
def test_tree_is_the_plain_one_only_faster(
    seed: int, capacity: int, num_candidates: int, rounds: list[tuple[int, int, int, bool]]
) -> None:
    rng = random.Random(seed)
    tree, plain = TokenTree(7, position=0, capacity=capacity), PlainTree(7)
    for num_expansions, num_rows, num_accepted, misses in rounds:
        for _ in range(num_expansions):
            if tree.can_grow:
                before = len(plain.slots)
                grow(tree, plain, num_rows, tree_slots=capacity, answer=lambda: some_candidates(rng, num_candidates))
                assert before < len(plain.slots) <= capacity
            else:
                assert len(plain.slots) == capacity
        scores = plain.scores()
        paths = subtree_paths(tree.best(num_rows + 1), plain.root)
        assert len(set(paths)) == len(paths) == min(num_rows + 1, len(scores))
        assert [scores[path] for path in paths] == sorted(scores.values(), reverse=True)[: len(paths)]
        verified = verdict(rng, plain, paths, num_accepted, misses=misses)
        hit = (*plain.root, *verified) in scores
        plain.root = (*plain.root, *verified)
        assert tree.advance(verified) is hit
        assert tree.position == len(plain.root) - 1
        assert tree.best(1) == Subtree(len(plain.root) - 1, (plain.root[-1],), (-1,))
        plain.keep(tree.compact())


def verdict(rng: random.Random, plain: PlainTree, sent: list[Tokens], num_accepted: int, *, misses: bool) -> Tokens:
    """A walk down the sent nodes, then a bonus token that is in the tree, or is not."""
    path = plain.root
    for _ in range(num_accepted):
        below = [child for child in sent if child[:-1] == path]
        path = rng.choice(below) if below else path
    known = plain.answers.get(path, Candidates((), ())).tokens
    strangers = [token for token in range(9) if token not in known]
    bonus = rng.choice(strangers if misses or not known else known)
    return (*path[len(plain.root) :], bonus)


FIRST = Candidates((2, 3), (-0.5, -1.0))


def grown(*answers: Sequence[Candidates], capacity: int = 16) -> TokenTree:
    """A tree under token 1 at position 4 after these forwards, each of as many rows as answers."""
    tree = TokenTree(1, position=4, capacity=capacity)
    for answer in answers:
        tree.pick(len(answer))
        tree.grow(answer)
    return tree


def test_first_row_is_the_root() -> None:
    tree = TokenTree(1, position=4, capacity=16)
    assert tree.can_grow
    assert tree.pick(8) == (Row(1, 4, 0),)


def test_leaves_are_picked_best_first_across_parents() -> None:
    tree = grown([FIRST], [Candidates((4, 5), (-0.125, -0.25))])
    assert tree.pick(3) == (Row(4, 6, 0b11), Row(5, 6, 0b11), Row(3, 5, 0b01))


def test_best_are_connected_parents_first_whether_forwarded_or_not() -> None:
    tree = grown([FIRST], [Candidates((4, 5), (-0.25, -2.0)), Candidates((6, 7), (-0.125, -0.75))])
    assert tree.best(4) == Subtree(4, (1, 2, 4, 3), (-1, 0, 1, 0))
    assert tree.best(99) == Subtree(4, (1, 2, 4, 3, 6, 7, 5), (-1, 0, 1, 0, 3, 3, 1))


def test_parent_comes_before_a_child_of_equal_score() -> None:
    tree = grown([Candidates((2, 3), (0.0, 0.0))], [Candidates((4, 5), (0.0, 0.0))])
    paths = subtree_paths(tree.best(5), (0, 0, 0, 0, 1))
    assert len(set(paths)) == 5


def test_hit_on_a_forwarded_node_keeps_what_is_below_it() -> None:
    tree = grown([FIRST], [Candidates((4, 5), (-0.25, -2.0)), Candidates((6,), (-0.5,))], [Candidates((8,), (-0.5,))])
    assert tree.advance((2, 4))
    assert tree.best(9) == Subtree(6, (4, 8), (-1, 0))
    assert tree.compact() == KeptSlots((0, 1, 3), 2)
    assert tree.pick(9) == (Row(8, 7, 0b1),)


def test_hit_on_a_bare_leaf_leaves_a_root_to_forward() -> None:
    tree = grown([FIRST])
    assert tree.advance((3,))
    assert tree.best(9) == Subtree(5, (3,), (-1,))
    assert tree.compact() == KeptSlots((0,), 1)
    assert tree.pick(9) == (Row(3, 5, 0),)


def test_miss_keeps_only_the_verified_path_and_forwards_what_is_missing_of_it() -> None:
    tree = grown([FIRST])
    assert not tree.advance((2, 9))
    assert tree.compact() == KeptSlots((0,), 1)
    assert tree.pick(1) == (Row(2, 5, 0b0), Row(9, 6, 0b1))
    tree.grow([Candidates((5,), (-0.5,)), Candidates((6,), (-0.5,))])
    assert tree.best(9) == Subtree(6, (9, 6), (-1, 0))
    assert tree.advance((6,))
    assert tree.compact() == KeptSlots((0, 1), 2)


def test_empty_verdict_changes_nothing() -> None:
    tree = grown([FIRST], [Candidates((4,), (-0.25,))])
    before = tree.best(9)
    assert tree.advance(())
    assert tree.compact() == KeptSlots((0, 1), 0)
    assert tree.best(9) == before
    assert tree.pick(1) == (Row(4, 6, 0b11),)


def test_full_tree_does_not_grow_until_a_verdict_makes_room() -> None:
    tree = grown([FIRST], [FIRST, FIRST], capacity=4)
    assert len(tree.pick(8)) == 1
    tree.grow([FIRST])
    assert not tree.can_grow
    tree.advance((3,))
    tree.compact()
    assert tree.can_grow
    assert len(tree.pick(8)) == 2


def test_path_longer_than_the_tree_is_forwarded_in_parts() -> None:
    tree = TokenTree(1, position=0, capacity=2)
    tree.advance((2, 3))
    assert tree.compact() == KeptSlots((), 0)
    assert tree.pick(1) == (Row(1, 0, 0b0), Row(2, 1, 0b1))
    tree.grow([FIRST, FIRST])
    assert not tree.can_grow
    assert tree.compact() == KeptSlots((0, 1), 2)
    assert tree.pick(1) == (Row(3, 2, 0b0),)


@pytest.mark.parametrize(
    "module", ["swiftspec.policies.tree", "swiftspec.policies.effects", "swiftspec.timing.timeline"]
)
def test_modules_of_the_contract_can_be_imported_first(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, cwd=Path(__file__).parents[2])


def test_capacity_below_a_miss_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity is 1; a miss alone needs 2 tree slots"):
        TokenTree(1, position=0, capacity=1)


def test_answers_must_match_the_rows() -> None:
    tree = TokenTree(1, position=0, capacity=4)
    tree.pick(1)
    with pytest.raises(ValueError, match="shorter"):
        tree.grow([])


def test_below_one_temperature_prefers_depth_along_likely_tokens() -> None:
    def best_tokens(temperature: float) -> Tokens:
        tree = TokenTree(1, position=0, capacity=8, temperature=temperature)
        for candidates in (Candidates((2, 3), (log(0.5), log(0.4))), Candidates((4, 5), (log(0.6), log(0.3)))):
            tree.pick(1)
            tree.grow([candidates])
        return tree.best(3).tokens

    assert best_tokens(1.0) == (1, 2, 3)  # 0.4 against 0.5 * 0.6
    assert best_tokens(0.5) == (1, 2, 4)  # 0.16 / 0.41 = 0.39 against 0.25 / 0.41 * 0.36 / 0.45 = 0.49


def test_temperature_must_be_positive() -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        TokenTree(1, position=0, capacity=4, temperature=0.0)


@given(
    st.lists(st.floats(-30, 0), min_size=1, max_size=24),
    st.floats(0.1, 2.0).filter(lambda temperature: temperature != 1.0),
)
def test_log_probs_at_a_temperature_are_those_of_the_candidates_among_themselves(
    logprobs: list[float], temperature: float
) -> None:
    logprobs.sort(reverse=True)
    scaled = at_temperature(tuple(logprobs), temperature)
    powers = [exp(logprob / temperature) for logprob in logprobs]
    assert max(scaled) <= 0.0
    assert [exp(value) for value in scaled] == pytest.approx([power / sum(powers) for power in powers], rel=1e-6)
