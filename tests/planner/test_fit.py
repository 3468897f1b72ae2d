from dataclasses import replace

import numpy as np
import pytest

from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses
from swiftspec.planner.search.space import fitted_temperature
from tools.iid_trace import synthesise_trace

RANKS = (0.6, 0.2, 0.1, 0.1)  # every target token is among the candidates, so that the draft's probabilities are exact


def flattened(trace: AcceptanceTrace, temperature: float) -> AcceptanceTrace:
    """The same choices of the target, from a draft whose probabilities are drawn out or squeezed by `temperature`."""
    prompts = []
    for prompt in trace.prompts:
        logprobs = prompt.draft.logprobs / temperature
        logprobs -= np.log(np.exp(logprobs).sum(axis=1, keepdims=True))
        prompts.append(replace(prompt, guesses={Guesser.DRAFT: Guesses(prompt.draft.tokens, logprobs)}))
    return replace(trace, prompts=tuple(prompts))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_fit_undoes_what_was_done_to_a_calibrated_draft(temperature: float) -> None:
    # 40 000 tokens: the standard error of the fitted inverse temperature is about 0.7 %.
    trace = synthesise_trace(RANKS, prompt_lengths=(10,) * 10, num_tokens=4000, seed=3)
    assert fitted_temperature(flattened(trace, temperature)) == pytest.approx(1 / temperature, rel=0.03)


def test_draft_that_is_always_right_gets_the_coldest_temperature() -> None:
    trace = synthesise_trace((0.5, 0.3), prompt_lengths=(10,), num_tokens=50, seed=0)
    prompt = trace.prompts[0]
    right = replace(prompt, ranks=np.zeros_like(prompt.ranks))
    assert fitted_temperature(replace(trace, prompts=(right,))) == pytest.approx(0.1)


def test_trace_without_a_recorded_choice_leaves_the_draft_as_it_is() -> None:
    trace = synthesise_trace((0.5, 0.3), prompt_lengths=(10,), num_tokens=50, seed=0)
    prompt = trace.prompts[0]
    never = replace(prompt, ranks=np.full_like(prompt.ranks, 2))
    assert fitted_temperature(replace(trace, prompts=(never,))) == 1.0
