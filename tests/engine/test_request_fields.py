"""Fields of a request that change what the target says: with every policy it says the same, and why it says so."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler, sampler_of
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.autoregressive import Autoregressive
from tests.engine.conftest import two_cores
from tests.engine.pairs import VOCAB_SIZE

PROMPT = tuple((7 * index) % VOCAB_SIZE for index in range(23))
NUM_TOKENS, LEAST, MOST_ROUNDING = 40, 12, 1e-4
POLICY_LIST = [make_policy(name) for name, policy in POLICIES.items() if DraftKind.SERIAL in policy.drafts]


def generation(engine: Launcher, policy: Policy, sampler: Sampler, ends: frozenset[int] = frozenset()) -> Generation:
    request = Request(prompt=PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=ends)
    return engine.generate(policy, request, request_id="fields", sampler=sampler)


def engine_of(request: pytest.FixtureRequest, policy: Policy) -> Launcher:
    fixture = "colocated" if policy.layout is not Layout.DISAGGREGATED else "disaggregated"
    engine: Launcher = request.getfixturevalue("two_targets" if policy.target_groups == 2 else fixture)
    return engine


class Reference:
    """transformers in fp32, a token at a time."""

    def __init__(self, pair: tuple[ModelRef, ModelRef]) -> None:
        directory = model_directory(pair[0].model)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def greedy(self, bias: Mapping[int, float], ends: frozenset[int], least: int) -> tuple[list[int], list[float]]:
        """Tokens and their log-probs before bias."""
        text, log_probs = list(PROMPT), []
        while len(text) < len(PROMPT) + NUM_TOKENS and not (len(text) > len(PROMPT) and text[-1] in ends):
            with torch.no_grad():
                logits = self.model(torch.tensor([text])).logits[0, -1]
            changed = logits.clone()
            for token, value in bias.items():
                changed[token] += value
            if len(text) < len(PROMPT) + least:
                changed[list(ends)] = -torch.inf
            text.append(int(changed.argmax()))
            log_probs.append(float(logits.log_softmax(dim=-1)[text[-1]]))
        return text[len(PROMPT) :], log_probs


@pytest.fixture(scope="module")
def reference(pair: tuple[ModelRef, ModelRef]) -> Reference:
    return Reference(pair)


@pytest.fixture(scope="module")
def sampled(colocated: Launcher) -> Generation:
    return generation(colocated, Autoregressive(), SAMPLED)


SAMPLED = Sampler(temperature=0.9, min_p=0.01, seed=5, logit_bias=((3, 4.0), (9, -100.0)), num_log_probs=2)


@two_cores
@pytest.mark.parametrize("policy", POLICY_LIST, ids=lambda policy: policy.name)
def test_every_policy_obeys_biases_and_a_least_length_and_tells_log_probs(
    request: pytest.FixtureRequest, policy: Policy, reference: Reference, sampled: Generation
) -> None:
    engine = engine_of(request, policy)
    plain, _ = reference.greedy({}, frozenset(), 0)
    bias = {plain[0]: -100.0, plain[3]: 3.0}
    biased, _ = reference.greedy(bias, frozenset(), 0)
    ends = frozenset({biased[2], biased[LEAST - 4]})  # both would end it before its least length
    expected, log_probs = reference.greedy(bias, ends, LEAST)
    assert plain != biased
    assert len(expected) >= LEAST
    sampler = Sampler(
        logit_bias=tuple(bias.items()),
        barred=tuple(ends),
        barred_before=len(PROMPT) - 1 + LEAST,
        num_log_probs=3,
    )
    said = generation(engine, policy, sampler, ends)
    assert list(said.tokens) == expected
    assert said.log_probs == pytest.approx(log_probs, abs=MOST_ROUNDING)
    assert [len(each.tokens) for each in said.candidates] == [3] * len(expected)
    drawn = generation(engine, policy, SAMPLED)
    assert drawn.tokens == sampled.tokens
    assert 9 not in drawn.tokens
    assert drawn.log_probs == pytest.approx(sampled.log_probs, abs=MOST_ROUNDING)


def test_a_misspelt_parameter_of_the_engine_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        sampler_of({"temprature": 1.0})  # type: ignore[typeddict-unknown-key]  # what a caller without types does


@pytest.mark.parametrize(
    ("field", "value"),
    [("logit_bias", {1: 101.0}), ("logit_bias", {1: float("nan")}), ("min_p", 1.5), ("num_log_probs", -1)],
)
def test_parameters_out_of_range_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} is .*; expected "):
        sampler_of({field: value})  # type: ignore[misc]  # one of several


def test_residual_acceptance_keeps_biases_and_the_least_length(colocated: Launcher) -> None:
    banned = tuple(range(0, VOCAB_SIZE, 2))
    sampler = Sampler(
        temperature=1.0,
        seed=3,
        acceptance="residual",
        logit_bias=tuple((token, -100.0) for token in banned),
        barred=(5,),
        barred_before=len(PROMPT) - 1 + LEAST,
        num_log_probs=0,
    )
    said = generation(colocated, make_policy("serial_chain"), sampler, frozenset({5}))
    assert not set(said.tokens) & set(banned)
    assert len(said.tokens) >= LEAST
    assert len(said.log_probs) == len(said.tokens)
    assert all(each < 0 for each in said.log_probs)
