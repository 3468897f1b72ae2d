from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from swiftspec.acceptance.model import rank_acceptance
from swiftspec.acceptance.proxy_pairs import LOGIT_PER_SIZE, FittedPair, acceptance_for, dataset_names, fitted_pairs
from swiftspec.models.heads import Product
from swiftspec.models.published import known_model, model_names
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.latency import Provenance


def mean_logit(target: str, draft: str, dataset: str | None = None) -> float:
    return acceptance_for(target, draft, dataset).acceptance_model.mean_logit


def drafts_of(target: str) -> list[str]:
    """Models of the registry that could draft for the target, from the smallest to the largest."""
    whole = known_model(target)
    smaller = [
        known_model(name)
        for name in model_names()
        if known_model(name).vocabulary == whole.vocabulary
        and known_model(name).spec.num_parameters < whole.spec.num_parameters
    ]
    return [model.name for model in sorted(smaller, key=lambda model: model.spec.num_parameters)]


def test_a_published_pair_has_its_own_figures() -> None:
    found = acceptance_for("qwen3-32b", "qwen3-4b", "MT-Bench")
    (stored,) = [p for p in fitted_pairs() if (p.draft, p.dataset) == ("qwen3-4b", "MT-Bench")]
    assert (found.acceptance_model, found.provenance) == (stored.acceptance_model, Provenance.PUBLISHED)
    assert (
        found.basis
        == "fitted to acceptance by position of chains of up to 6 tokens (tomasruizt/vllm-scripts) on MT-Bench"
    )


@pytest.mark.parametrize("dataset", [None, *dataset_names()])
@pytest.mark.parametrize("target", [name for name in model_names() if len(drafts_of(name)) > 1])
def test_a_larger_draft_is_never_right_less_often(target: str, dataset: str | None) -> None:
    shares = [
        rank_acceptance(acceptance_for(target, draft, dataset).acceptance_model, 1)[0] for draft in drafts_of(target)
    ]
    assert shares == sorted(shares)


@dataclass(frozen=True)
class Unnamed:
    """A model that the registry does not have."""

    name: str
    spec: ModelSpec
    vocabulary: None = None
    products: tuple[Product, ...] = ()


LLAMA_405B = Unnamed(
    "./llama-3.1-405b",
    replace(
        known_model("llama-3.1-70b").spec, hidden_size=16384, num_layers=126, num_heads=128, intermediate_size=53248
    ),
)


@pytest.mark.parametrize("target", ["llama-3-70b", "llama-3.1-70b", "llama-3.3-70b", LLAMA_405B])
def test_1b_3b_and_8b_of_llama_3_come_in_this_order(target: str | Unnamed) -> None:
    drafts = ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b")
    one, three, eight = (rank_acceptance(acceptance_for(target, draft).acceptance_model, 1)[0] for draft in drafts)
    assert one < three < eight


@pytest.mark.parametrize("target", model_names())
def test_all_drafts_of_a_target_rest_on_the_same_data_sets(target: str) -> None:
    drafts = drafts_of(target)
    assert len({acceptance_for(target, draft).basis.split(" on ")[-1].split(", its logit")[0] for draft in drafts}) <= 1


@pytest.mark.parametrize(
    ("target", "draft", "dataset", "warning"),
    [
        ("llama-3.3-70b", "llama-3.2-1b", None, "known only on InstructCoder (code editing, where much of the output"),
        ("llama-3.1-70b", "llama-3.1-8b", None, "known only on InstructCoder (code editing, where much of the output"),
        ("llama-3.3-70b", "llama-3.2-1b", "InstructCoder", ""),
        ("llama-3-70b", "llama-3.2-1b", None, ""),
        ("qwen3-32b", "qwen3-4b", None, ""),
    ],
)
def test_one_narrow_data_set_is_warned_of_unless_asked_for(
    target: str, draft: str, dataset: str | None, warning: str
) -> None:
    found = acceptance_for(target, draft, dataset).warning
    assert found.startswith(warning)
    assert bool(found) == bool(warning)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FittedPair]]:
    """Figures of Qwen2-72B alone, to be added to."""
    fits = [fit for fit in fitted_pairs() if fit.target == "qwen2-72b"]
    with monkeypatch.context() as patch:
        patch.setattr("swiftspec.acceptance.proxy_pairs.fitted_pairs", lambda: tuple(fits))
        yield fits


def another(fit: FittedPair, **changed: object) -> FittedPair:
    acceptance_model = fit.acceptance_model.model_copy(update={"mean_logit": changed.pop("mean_logit")})
    return fit.model_copy(update={"acceptance_model": acceptance_model, **changed})


def test_pairs_of_one_target_are_compared_on_the_data_sets_that_they_share(published: list[FittedPair]) -> None:
    (chat,) = [fit for fit in published if fit.dataset == "MT-Bench"]
    published.append(another(chat, draft="qwen2-7b", mean_logit=3.0))
    larger, smaller = (acceptance_for("qwen2-72b", draft) for draft in ("qwen2-7b", "qwen2-1.5b"))
    assert (larger.acceptance_model.mean_logit, smaller.acceptance_model.mean_logit) == (
        3.0,
        chat.acceptance_model.mean_logit,
    )
    assert larger.basis.endswith(" on MT-Bench")
    assert smaller.basis.endswith(" on MT-Bench")
    assert smaller.acceptance_model.mean_logit < mean_logit("qwen2-72b", "qwen2.5-3b") < 3.0


def test_figures_on_other_data_sets_than_the_other_drafts_do_not_enter_a_comparison(
    published: list[FittedPair],
) -> None:
    published.append(another(published[0], draft="qwen2-7b", dataset="InstructCoder", mean_logit=0.5))
    found = acceptance_for("qwen2-72b", "qwen2-7b")
    assert found.provenance is Provenance.ASSUMED
    assert found.basis.startswith("no acceptance of qwen2-72b with qwen2-7b is published on Alpaca, GSM8K, ")
    assert found.acceptance_model.mean_logit > mean_logit("qwen2-72b", "qwen2-1.5b")
    own = acceptance_for("qwen2-72b", "qwen2-7b", "InstructCoder")
    assert (own.provenance, own.acceptance_model.mean_logit) == (Provenance.PUBLISHED, 0.5)


def test_between_two_published_drafts_a_third_lies_between_even_if_the_larger_one_is_worse(
    published: list[FittedPair],
) -> None:
    published += [another(fit, draft="qwen2-7b", mean_logit=fit.acceptance_model.mean_logit - 0.1) for fit in published]
    logits = [mean_logit("qwen2-72b", draft) for draft in ("qwen2-0.5b", "qwen2-1.5b", "qwen2.5-3b", "qwen2.5-32b")]
    assert logits == sorted(logits)


def test_without_a_data_set_it_is_the_mean_of_those_published() -> None:
    each = [mean_logit("qwen3-32b", "qwen3-4b", dataset) for dataset in ("InstructCoder", "MT-Bench")]
    assert mean_logit("qwen3-32b", "qwen3-4b") == pytest.approx(np.mean(each))


def test_the_same_target_stands_in_first_and_its_draft_is_made_smaller() -> None:
    acceptance_model, basis, provenance, _ = acceptance_for("llama-3-70b", "llama-3.2-3b")
    assert provenance is Provenance.ASSUMED
    assert basis == (
        "no acceptance of llama-3-70b with llama-3.2-3b is published; llama-3-70b with llama-3-8b stands in, fitted to "
        "length of 16 chains of 48 tokens (Sequoia) on MT-Bench, its logit moved by -0.69 for the draft's size"
    )
    smaller = np.log(known_model("llama-3.2-3b").spec.num_parameters / known_model("llama-3-8b").spec.num_parameters)
    assert acceptance_model.mean_logit == pytest.approx(
        mean_logit("llama-3-70b", "llama-3-8b") + LOGIT_PER_SIZE * smaller
    )


@pytest.mark.parametrize(
    ("target", "draft", "stand_in"),
    [
        ("llama-3.3-70b", "llama-3.2-3b", "llama-3.3-70b with llama-3.2-1b"),
        ("llama-3.1-70b", "llama-3.2-1b", "llama-3.3-70b with llama-3.2-1b"),
        ("qwen2.5-72b", "qwen2.5-1.5b", "qwen2-72b with qwen2-1.5b"),
        ("deepseek-coder-33b", "deepseek-coder-1.3b", "qwen3-32b with qwen3-1.7b"),
    ],
)
def test_then_the_same_family_then_the_nearest_sizes(target: str, draft: str, stand_in: str) -> None:
    assert f"; {stand_in} stands in" in acceptance_for(target, draft).basis


def test_stand_ins_miss_by_up_to_two_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every published pair in turn, as if it had not been: what `assumed` means. One family is found, one is not."""
    everything = fitted_pairs()
    missed = {}
    for target, draft in {(fit.target, fit.draft) for fit in everything}:
        truth = mean_logit(target, draft)
        others = tuple(fit for fit in everything if (fit.target, fit.draft) != (target, draft))
        with monkeypatch.context() as patch:
            patch.setattr("swiftspec.acceptance.proxy_pairs.fitted_pairs", partial(tuple, others))
            missed[target] = abs(mean_logit(target, draft) - truth)
    assert missed["qwen2-72b"] < 0.3
    assert 1.8 < max(missed.values()) < 2.1


def test_a_stand_in_has_figures_on_the_data_set_asked_for() -> None:
    basis = acceptance_for("llama-3-70b", "llama-3.2-3b", "InstructCoder").basis
    assert "on InstructCoder; llama-3.3-70b with llama-3.2-1b stands in" in basis


def test_size_is_worth_what_it_is_for_two_drafts_of_one_target() -> None:
    sizes = [known_model(draft).spec.num_parameters for draft in ("qwen3-1.7b", "qwen3-4b")]
    rise = mean_logit("qwen3-32b", "qwen3-4b") - mean_logit("qwen3-32b", "qwen3-1.7b")
    assert rise / np.log(sizes[1] / sizes[0]) == pytest.approx(LOGIT_PER_SIZE, abs=0.05)


def test_without_a_published_pair_of_its_vocabulary_the_family_of_the_stand_in_does_not_matter() -> None:
    shape = replace(known_model("qwen2-72b").spec, vocab_size=99_999)
    found = acceptance_for(Unnamed("./mine", shape), Unnamed("./small", known_model("llama-3.2-1b").spec))
    assert found.provenance is Provenance.ASSUMED
    assert found.basis.startswith("no acceptance of ./mine with ./small is published; qwen2-72b with qwen2-1.5b stands")


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ValueError, match="model is 'lama-3-70b'; did you mean llama-3-70b"):
        acceptance_for("lama-3-70b", "llama-3.2-3b")
    with pytest.raises(
        ValueError, match=r"draft is 'qwen2-1.5b', whose vocabulary is qwen2; llama-3-70b needs one of llama-3"
    ):
        acceptance_for("llama-3-70b", "qwen2-1.5b")
    with pytest.raises(ValueError, match="dataset is 'Wikipedia'; expected one of Alpaca, "):
        acceptance_for("llama-3-70b", "llama-3.2-3b", "Wikipedia")
