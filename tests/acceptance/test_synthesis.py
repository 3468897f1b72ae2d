from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftspec.acceptance.model import PRIOR, AcceptanceModel, rank_acceptance, tree_acceptance
from swiftspec.acceptance.synthesis import EXIT_ACCEPTANCE, FUZZY_SHARE, synthesise
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser
from swiftspec.files.document import ModelRef
from swiftspec.planner.search.space import fitted_temperature

MODEL = ModelRef(model="synthetic", dtype="int4")


def trace(acceptance_model: AcceptanceModel = PRIOR, **changes: Any) -> AcceptanceTrace:
    arguments = {"num_prompts": 16, "prompt_length": 3, "num_tokens": 256, "seed": 0} | changes
    return synthesise(acceptance_model, target=MODEL, draft=MODEL, **arguments)


def test_sixteen_prompts_have_the_acceptance_of_the_process() -> None:
    for mean_logit in (1.0, 2.5, 4.5):
        acceptance_model = PRIOR.model_copy(update={"mean_logit": mean_logit})
        assert trace(acceptance_model).rank_acceptance(3) == pytest.approx(
            rank_acceptance(acceptance_model, 3), abs=0.015
        )


def test_chains_of_a_trace_are_those_of_the_process() -> None:
    accepted = []
    for prompt in trace(num_prompts=64).prompts:
        hits, start = prompt.ranks == 0, 0
        while start + 6 < len(hits):
            run = int(np.argmin(np.append(hits[start : start + 6], False)))
            accepted.append(run)
            start += run + 1
    shares = [float(np.mean([run > depth for run in accepted])) for depth in range(6)]
    assert shares == pytest.approx(tree_acceptance(PRIOR, (1,) * 6), abs=0.02)


def test_draft_is_as_sure_as_it_is_right() -> None:
    assert fitted_temperature(trace()) == pytest.approx(1, abs=0.05)
    prompts = trace(num_prompts=64).prompts
    first = np.exp(np.concatenate([prompt.draft.logprobs[:, 0] for prompt in prompts]))
    hits = np.concatenate([prompt.ranks == 0 for prompt in prompts])
    for low, high in ((0.2, 0.4), (0.6, 0.8), (0.9, 0.99)):
        among = (first > low) & (first < high)
        assert hits[among].mean() == pytest.approx(first[among].mean(), abs=0.02)


def test_rank_is_where_the_targets_token_stands() -> None:
    for prompt in trace(num_candidates=4).prompts:
        inside = prompt.ranks < 4
        at_rank = prompt.draft.tokens[inside, prompt.ranks[inside]]
        assert (at_rank == prompt.target_tokens[inside]).all()
        assert not (prompt.draft.tokens[~inside] == prompt.target_tokens[~inside, None]).any()


def test_fuzzy_draft_and_exit_are_worth_what_they_are_for_the_bundled_pair() -> None:
    prompts = trace(PRIOR.model_copy(update={"mean_logit": 3.7})).prompts

    def acceptance(guesser: Guesser) -> float:
        return float(np.mean([prompt.guesses[guesser].tokens[:, 0] == prompt.target_tokens for prompt in prompts]))

    assert acceptance(Guesser.FUZZY) / acceptance(Guesser.DRAFT) == pytest.approx(FUZZY_SHARE, abs=0.01)
    assert acceptance(Guesser.EXIT) == pytest.approx(EXIT_ACCEPTANCE, abs=0.02)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    written = trace()
    written.save(tmp_path / "trace.npz")
    read = AcceptanceTrace.load(tmp_path / "trace.npz")
    assert (read.source, read.guessers) == ("synthesised", frozenset(Guesser))
    for mine, theirs in zip(written.prompts, read.prompts, strict=True):
        assert (mine.ranks == theirs.ranks).all()
        assert (mine.draft.logprobs == theirs.draft.logprobs).all()


def test_a_seed_is_a_text() -> None:
    first, again, other = (trace(seed=seed).prompts[3].target_tokens for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("field", ["num_prompts", "prompt_length", "num_tokens", "num_candidates"])
def test_counts_are_at_least_one(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0; expected at least 1"):
        trace(PRIOR, **{field: 0})


def test_a_trace_knows_no_depth() -> None:
    with pytest.raises(ValueError, match=r"depth_loss is 0.5; a trace has no depth"):
        trace(PRIOR.model_copy(update={"depth_loss": 0.5}))
