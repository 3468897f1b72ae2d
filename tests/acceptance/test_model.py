from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit

from swiftspec.acceptance.model import (
    PRIOR,
    AcceptanceModel,
    candidate_shares,
    logits,
    rank_acceptance,
    tree_acceptance,
)
from tools.closed_forms import chain_tokens


def variant(**fields: float) -> AcceptanceModel:
    return PRIOR.model_copy(update=fields)


def conditional(acceptance_model: AcceptanceModel, length: int) -> list[float]:
    cumulative = [1.0, *tree_acceptance(acceptance_model, (1,) * length)]
    return [after / before for before, after in pairwise(cumulative)]


def test_without_spread_a_chain_is_that_of_independent_positions() -> None:
    acceptance_model = variant(spread=0.0)
    tokens = 1 + sum(tree_acceptance(acceptance_model, (1,) * 6))
    assert tokens == pytest.approx(chain_tokens(float(expit(acceptance_model.mean_logit)), 6), rel=1e-9)


def test_conditional_acceptance_rises_with_depth_where_stretches_differ() -> None:
    rising = conditional(variant(persistence=0.5), 8)
    assert all(before < after for before, after in pairwise(rising))
    level = conditional(variant(persistence=0.0), 8)
    assert max(level) - min(level) < 0.02


def test_first_token_of_a_round_is_accepted_less_often_the_longer_the_chain() -> None:
    first = [tree_acceptance(variant(persistence=0.5), (1,) * length)[0] for length in (1, 2, 4, 8)]
    assert all(before > after for before, after in pairwise(first))


def test_acceptance_of_a_head_falls_with_depth() -> None:
    falling = conditional(variant(persistence=0.0, depth_loss=0.7), 6)
    assert all(before > after for before, after in pairwise(falling))


def test_more_children_accept_more_and_only_at_their_level() -> None:
    narrow, wide = (tree_acceptance(PRIOR, widths) for widths in ((1, 1, 1), (1, 3, 1)))
    assert wide[0] == pytest.approx(narrow[0], rel=0.02)
    assert wide[1] > 1.05 * narrow[1]
    assert sum(tree_acceptance(PRIOR, (8,))) == pytest.approx(sum(rank_acceptance(PRIOR, 8)), rel=0.02)


@pytest.mark.parametrize("widths", [(), (1, 0)])
def test_a_tree_has_levels_of_children(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="widths is"):
        tree_acceptance(PRIOR, widths)


def test_candidates_share_one_and_fall_with_rank() -> None:
    shares = candidate_shares(np.array([0.02, 0.3, 0.9, 1.0]), 0.7, 16)
    assert (np.diff(shares, axis=1) <= 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert shares[2, :3] == pytest.approx([0.9, 0.07, 0.03 * 0.7 / 2**0.5])


def test_a_dozen_texts_have_the_mean_of_many() -> None:
    few, many = (logits(PRIOR, num_texts=number, num_tokens=256, seed=5) for number in (12, 1200))
    assert few.mean() == pytest.approx(many.mean(), abs=0.05)
    assert few.std() == pytest.approx(many.std(), rel=0.05)


def test_correlation_fades_over_the_correlation_length() -> None:
    acceptance_model = variant(mean_logit=0.0, spread=1.0, persistence=0.6, correlation_length=50.0)
    values = logits(acceptance_model, num_texts=600, num_tokens=256, seed=1)
    for lag in (1, 25, 50, 100):
        expected = 0.6 * np.exp(-lag / 50)
        assert np.mean(values[:, lag:] * values[:, :-lag]) == pytest.approx(expected, abs=0.05)
