from functools import partial

import numpy as np
import pytest

from swiftspec.difficulty import acceptance_for
from swiftspec.difficulty.pairs import LOGIT_PER_SIZE, fitted_pairs
from swiftspec.latency import Provenance
from swiftspec.registry import known_model


def mean_logit(target: str, draft: str, dataset: str | None = None) -> float:
    return acceptance_for(target, draft, dataset).difficulty.mean_logit


def test_a_published_pair_has_its_own_figures() -> None:
    difficulty, basis, provenance = acceptance_for("qwen3-32b", "qwen3-4b", "MT-Bench")
    (stored,) = [p for p in fitted_pairs() if (p.draft, p.dataset) == ("qwen3-4b", "MT-Bench")]
    assert (difficulty, provenance) == (stored.difficulty, Provenance.PUBLISHED)
    assert basis == "fitted to acceptance by position of chains of up to 6 tokens (tomasruizt/vllm-scripts) on MT-Bench"


def test_without_a_data_set_it_is_the_mean_of_those_published() -> None:
    each = [mean_logit("qwen3-32b", "qwen3-4b", dataset) for dataset in ("InstructCoder", "MT-Bench")]
    assert mean_logit("qwen3-32b", "qwen3-4b") == pytest.approx(np.mean(each))


def test_the_same_target_stands_in_first_and_its_draft_is_made_smaller() -> None:
    difficulty, basis, provenance = acceptance_for("llama-3-70b", "llama-3.2-3b")
    assert provenance is Provenance.ASSUMED
    assert basis == (
        "no acceptance of llama-3-70b with llama-3.2-3b is published; llama-3-70b with llama-3-8b stands in, fitted to "
        "length of 16 chains of 48 tokens (Sequoia) on MT-Bench, its logit moved by -0.69 for the draft's size"
    )
    smaller = np.log(known_model("llama-3.2-3b").spec.num_parameters / known_model("llama-3-8b").spec.num_parameters)
    assert difficulty.mean_logit == pytest.approx(mean_logit("llama-3-70b", "llama-3-8b") + LOGIT_PER_SIZE * smaller)


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
            patch.setattr("swiftspec.difficulty.pairs.fitted_pairs", partial(tuple, others))
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


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ValueError, match="model is 'llama-3-71b'; did you mean llama-3-70b"):
        acceptance_for("llama-3-71b", "llama-3.2-3b")
    with pytest.raises(
        ValueError, match=r"draft is 'qwen2-1.5b', whose vocabulary is qwen2; llama-3-70b needs one of llama-3"
    ):
        acceptance_for("llama-3-70b", "qwen2-1.5b")
    with pytest.raises(ValueError, match="dataset is 'Wikipedia'; expected one of Alpaca, "):
        acceptance_for("llama-3-70b", "llama-3.2-3b", "Wikipedia")
