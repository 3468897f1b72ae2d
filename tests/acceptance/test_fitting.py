import pytest

from swiftspec.acceptance import PRIOR, Chain, Length, Ranks, fit_acceptance_model, rank_acceptance, tree_acceptance

HIDDEN = PRIOR.model_copy(update={"mean_logit": 3.1, "persistence": 0.22, "runner_up": 0.55})
CHAIN = Chain(values=tuple(tree_acceptance(HIDDEN, (1,) * 6)))
RANKS = Ranks(values=tuple(rank_acceptance(HIDDEN, 5)))


def test_a_chain_and_ranks_give_their_acceptance_model_back() -> None:
    fit = fit_acceptance_model([CHAIN, RANKS])
    assert fit.fields == ("mean_logit", "persistence", "runner_up")
    assert fit.acceptance_model.model_dump() == pytest.approx(HIDDEN.model_dump(), rel=0.01)
    assert fit.residual < 1e-3


def test_cumulative_ranks_say_the_same() -> None:
    sums = tuple(sum(RANKS.values[: count + 1]) for count in range(len(RANKS.values)))
    marginal, cumulative = (fit_acceptance_model([ranks]) for ranks in (RANKS, Ranks(values=sums, cumulative=True)))
    assert cumulative.acceptance_model.model_dump() == pytest.approx(marginal.acceptance_model.model_dump(), rel=1e-6)


def test_a_length_decides_the_mean_alone() -> None:
    fit = fit_acceptance_model(
        [Length(value=2.4, of=lambda acceptance_model: sum(tree_acceptance(acceptance_model, (1,) * 5)))]
    )
    assert fit.fields == ("mean_logit",)
    assert sum(tree_acceptance(fit.acceptance_model, (1,) * 5)) == pytest.approx(2.4, rel=1e-3)
    assert fit.acceptance_model.model_copy(update={"mean_logit": PRIOR.mean_logit}) == PRIOR


def test_a_fit_repeats_exactly() -> None:
    assert fit_acceptance_model([CHAIN]) == fit_acceptance_model([CHAIN])


def test_falling_acceptance_is_depth_loss_where_that_is_what_is_fitted() -> None:
    head = HIDDEN.model_copy(update={"persistence": PRIOR.persistence, "depth_loss": 0.6})
    chain = Chain(values=tuple(tree_acceptance(head, (1,) * 4)))
    fit = fit_acceptance_model(
        [chain], prior=head.model_copy(update={"depth_loss": 0.0}), fields=("mean_logit", "depth_loss")
    )
    assert fit.acceptance_model.depth_loss == pytest.approx(0.6, rel=0.05)


def test_nothing_to_fit_and_unknown_fields_are_errors() -> None:
    with pytest.raises(ValueError, match="observations is empty"):
        fit_acceptance_model([])
    with pytest.raises(ValueError, match="fields has 'hardness'; expected some of mean_logit, "):
        fit_acceptance_model([CHAIN], fields=("hardness",))
