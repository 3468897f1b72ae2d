"""Every division of both roles that four or five processes make: the output is the undivided, autoregressive one."""

from collections.abc import Iterator
from itertools import product

import pytest

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.asynchronous.pearl import Pearl
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.policies.trees.eagle2 import EasySpec
from tests.engine.conftest import start_engine, two_cores
from tests.engine.pairs import references, write_pair

pytestmark = [pytest.mark.alone, two_cores]  # ranks that wait for each other take many times as long on busy cores
PROMPTS = ((5, 17, 3, 88, 41), tuple(range(1, 60)))
# Neither two nor three ranks divide five heads, be they five groups or one, nor the neurons or the vocabulary of 97.
HEADS = {"llama": {"num_attention_heads": 10, "num_key_value_heads": 5}, "qwen3": {"num_attention_heads": 5}}
COLOCATED: tuple[Policy, ...] = (
    Autoregressive(),
    SerialChain(num_draft_tokens=4),
    SerialTree(verify_rows=6, expand_rows=3),
    EasySpec(),
)
DISAGGREGATED: tuple[Policy, ...] = (SwiftSpec(), Pearl())
# Shards are tested with either architecture where one engine holds both roles: here one of them takes every division.
DIVISIONS = [*(("llama", *ranks) for ranks in product((1, 2, 3), (1, 2))), ("qwen3", 3, 2)]


@pytest.fixture(scope="module", params=list(HEADS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    shape = {"hidden_size": 60, "num_key_value_heads": 1, "intermediate_size": 83, **HEADS[request.param]}
    return references(write_pair(tmp_path_factory.mktemp(request.param), architecture=request.param, **shape))


def outputs(engine: Launcher, policy: Policy, sampler: Sampler) -> list[tuple[int, ...]]:
    requests = [Request(prompt=prompt, max_new_tokens=14, eos_token_ids=frozenset({0})) for prompt in PROMPTS]
    generations = [engine.generate(policy, request, request_id="test", sampler=sampler) for request in requests]
    assert not all(generation.losses for generation in generations), "the draft takes part"
    return [generation.tokens for generation in generations]


SAMPLERS = (Sampler(), Sampler(temperature=0.8, seed=3))


@pytest.fixture(scope="module")
def expected(pair: tuple[ModelRef, ModelRef]) -> Iterator[dict[Sampler, list[tuple[int, ...]]]]:
    with start_engine(pair, Layout.COLOCATED) as engine:
        yield {sampler: outputs(engine, Autoregressive(), sampler) for sampler in SAMPLERS}


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_colocated_policies_on_any_number_of_ranks(
    pair: tuple[ModelRef, ModelRef], expected: dict[Sampler, list[tuple[int, ...]]], num_ranks: int
) -> None:
    with start_engine(pair, Layout.COLOCATED, ranks={Role.TARGET: num_ranks}) as engine:
        for policy, sampler in product(COLOCATED, SAMPLERS):
            assert outputs(engine, policy, sampler) == expected[sampler], policy


@pytest.mark.parametrize(("pair", "num_target", "num_draft"), DIVISIONS, indirect=["pair"])
def test_disaggregated_policies_on_any_numbers_of_ranks(
    pair: tuple[ModelRef, ModelRef], expected: dict[Sampler, list[tuple[int, ...]]], num_target: int, num_draft: int
) -> None:
    ranks = {Role.TARGET: num_target, Role.DRAFT: num_draft}
    with start_engine(pair, Layout.DISAGGREGATED, ranks=ranks, patience_s=5.0) as engine:
        assert len(engine.processes) == num_target + num_draft
        for policy, sampler in product(DISAGGREGATED, SAMPLERS):
            assert outputs(engine, policy, sampler) == expected[sampler], policy
