"""Tree operations: what the draft's host does per expansion and per verdict."""

import random
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from swiftspec.policies.effects import Candidates
from swiftspec.policies.tree import TokenTree

NUM_CANDIDATES = 8


def candidates(rng: random.Random) -> Candidates:
    logprobs = sorted((-5 * rng.random() for _ in range(NUM_CANDIDATES)), reverse=True)
    return Candidates(tuple(rng.sample(range(4096), NUM_CANDIDATES)), tuple(logprobs))


def grown(*, expansions: int, rows: int) -> TokenTree:
    rng = random.Random(0)
    tree = TokenTree(1, position=100, capacity=512)
    for _ in range(expansions):
        tree.grow([candidates(rng) for _ in tree.pick(rows)])
    return tree


def test_expansion_of_eight_rows(benchmark: BenchmarkFixture) -> None:
    rng = random.Random(1)
    drawn = [candidates(rng) for _ in range(8)]

    def setup() -> tuple[tuple[TokenTree], dict[str, Any]]:
        return (grown(expansions=6, rows=8),), {}

    def expand(tree: TokenTree) -> int:
        rows = tree.pick(8)
        tree.grow(drawn)
        return len(rows)

    assert benchmark.pedantic(expand, setup=setup, rounds=200) == 8


def test_verdict_to_next_subtree(benchmark: BenchmarkFixture) -> None:
    def setup() -> tuple[tuple[TokenTree], dict[str, Any]]:
        return (grown(expansions=12, rows=8),), {}

    def turn_around(tree: TokenTree) -> int:
        path = tree.best(8)
        tree.advance(path.tokens[1:2])
        return len(tree.best(8).tokens)

    assert benchmark.pedantic(turn_around, setup=setup, rounds=200) == 8
