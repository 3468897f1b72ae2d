import pytest

from swiftspec.acceptance.model import PRIOR, rank_acceptance, tree_acceptance
from swiftspec.studies.backtest.figures import Chain, Length, Ranks, acceptance_of, fit_acceptance_model

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


def test_records_of_a_pair() -> None:
    chains = acceptance_of("qwen3-32b", "qwen3-1.7b", "MT-Bench")
    assert sorted(len(record.values) for record in chains) == [1, 2, 3, 4, 5, 6]
    assert len(acceptance_of("qwen3-32b", "qwen3-1.7b")) == 12
    assert acceptance_of("llama-3-70b", "llama-3.2-3b") == []
    assert [record.values for record in acceptance_of("llama-3-70b", "llama-3-8b")] == [(9.07,), (11.68,)]
