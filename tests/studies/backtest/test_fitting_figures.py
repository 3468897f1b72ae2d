import pytest

from swiftspec.acceptance.model import PRIOR, tree_acceptance
from swiftspec.studies.backtest.figures import Chain, fit_acceptance_model

HIDDEN = PRIOR.model_copy(update={"mean_logit": 3.1, "persistence": 0.22, "runner_up": 0.55})
CHAIN = Chain(values=tuple(tree_acceptance(HIDDEN, (1,) * 6)))


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
