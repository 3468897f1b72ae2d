import pytest

from swiftspec.planner.search.estimates import best_tree_tokens
from tools.closed_forms import chain_tokens, fewest_rounds


@pytest.mark.parametrize(
    ("ranks", "num_nodes", "tokens"),
    [
        ((0.6, 0.2, 0.1), 2, 1.600),
        ((0.6, 0.2, 0.1), 4, 2.176),
        ((0.6, 0.2, 0.1), 8, 2.7456),
        ((0.6, 0.2, 0.1), 32, 3.8324),
        ((0.8, 0.1), 4, 2.952),
        ((0.8, 0.1), 16, 4.9851),
    ],
)
def test_best_tree_is_the_best_static_tree(ranks: tuple[float, ...], num_nodes: int, tokens: float) -> None:
    assert best_tree_tokens(ranks, num_nodes) == pytest.approx(tokens, abs=5e-5)


@pytest.mark.parametrize(("num_nodes", "tokens"), [(8, 2.716), (16, 3.164), (32, 3.414)])
def test_best_tree_of_limited_depth(num_nodes: int, tokens: float) -> None:
    assert best_tree_tokens((0.6, 0.2, 0.1), num_nodes, max_depth=3) == pytest.approx(tokens, abs=5e-4)


def test_best_tree_of_one_candidate_is_a_chain() -> None:
    assert best_tree_tokens((0.7,), 6) == pytest.approx(chain_tokens(0.7, 5))
    assert best_tree_tokens((0.7,), 6, max_depth=2) == pytest.approx(chain_tokens(0.7, 2))


@pytest.mark.parametrize(
    ("ranks", "verify_rows", "num_candidates", "rounds"),
    [
        ([0, 0, 0, 0], 4, 8, 1),  # three accepted and the bonus token
        ([0, 0, 0, 0, 0], 4, 8, 2),
        ([9, 9, 9], 8, 8, 3),  # never among the candidates: a bonus token a round
        ([1, 1, 1, 1], 4, 8, 2),  # a second choice takes two rows, and the next one has no room
        ([1, 0, 0, 0], 4, 1, 2),  # no second choices at all
        ([], 4, 8, 0),
    ],
)
def test_fewest_rounds(ranks: list[int], verify_rows: int, num_candidates: int, rounds: int) -> None:
    assert fewest_rounds(ranks, verify_rows=verify_rows, num_candidates=num_candidates) == rounds
