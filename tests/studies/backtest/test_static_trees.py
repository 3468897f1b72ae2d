import numpy as np
import pytest

from swiftspec.acceptance.model import PRIOR, rank_acceptance
from swiftspec.planner.search.estimates import best_tree_tokens
from swiftspec.studies.backtest.static_trees import (
    FORKED,
    SPECINFER_WIDE_LEVEL,
    ForkedTree,
    forked_fit,
    sequoia_length,
    specinfer_lengths,
    specinfer_records,
)


def test_wide_level_is_the_same_with_any_data_set_left_out() -> None:
    published = list(specinfer_records())
    misses = np.array(
        [
            [
                np.abs(np.array(specinfer_lengths(ranks, level)) / np.array(lengths.values) - 1).mean()
                for level in range(3)
            ]
            for ranks, lengths in published
        ]
    )
    for left_out in range(len(published)):
        assert np.delete(misses, left_out, axis=0).mean(axis=0).argmin() == SPECINFER_WIDE_LEVEL


def test_static_tree_of_independent_positions_is_the_closed_form() -> None:
    """Without spread every position is alike, and the sum over the nodes is exact."""
    acceptance_model = PRIOR.model_copy(update={"spread": 0.0, "mean_logit": 0.5})
    expected = best_tree_tokens(tuple(rank_acceptance(acceptance_model, 32)), 64, max_depth=8)
    assert sequoia_length(acceptance_model, num_nodes=64, depth=8) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("tree", FORKED, ids=lambda tree: tree.target)
def test_fit_gives_the_chains_their_length(tree: ForkedTree) -> None:
    assert forked_fit(tree).residual < 1e-3
