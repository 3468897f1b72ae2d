"""Earlier outputs in a real target's process: who has them, and who does not."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

import swiftspec
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.requests import Task
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Request
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.timing.timeline import Phase
from tests.cli.samples import plan as sample_plan
from tests.engine.conftest import start_engine

POLICY = SuffixDecoding(max_spec_factor=4.0, earlier_outputs=2)
SAMPLED = Sampler(temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def engine(pair: tuple[ModelRef, ModelRef], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Its one tenant has the target's own weights, and so says the same."""
    twin = tmp_path_factory.mktemp("tenant") / "twin"
    shutil.copytree(pair[0].model, twin)
    with start_engine(pair, Layout.TARGET_ONLY, tenants=(str(twin),)) as engine:
        yield engine


def generate(
    engine: Launcher, prompt: tuple[int, ...], policy: SuffixDecoding = POLICY, *, sampler: Sampler, tenant: int = 0
) -> tuple[tuple[int, ...], int]:
    """The output, and the number of verifications."""
    request = Request(prompt=prompt, max_new_tokens=40)
    stream = engine.stream(policy, Task(prompt_id="x", request=request, tenant=tenant), sampler=sampler)
    try:
        while True:
            next(stream)
    except StopIteration as finished:
        generation: Generation = finished.value
        return generation.tokens, sum(span.phase is Phase.VERIFY for span in generation.timeline.spans)


def test_a_tenants_outputs_speed_up_its_own_requests_only(engine: Launcher) -> None:
    prompt = (5, 17, 3, 88)
    output, num_rounds = generate(engine, prompt, sampler=SAMPLED)
    assert generate(engine, prompt, sampler=SAMPLED, tenant=1) == (output, num_rounds)
    for tenant in (0, 1):
        again, fewer = generate(engine, prompt, sampler=SAMPLED, tenant=tenant)
        assert again == output
        assert fewer < 0.5 * num_rounds
    assert generate(engine, prompt, replace(POLICY, earlier_outputs=0), sampler=SAMPLED) == (output, num_rounds)


def test_residual_sampling_does_without_them(engine: Launcher) -> None:
    residual = replace(SAMPLED, acceptance="residual")
    first, again = (generate(engine, (9, 4), sampler=residual) for _ in range(2))
    assert first == again


def test_an_engine_has_none_unless_asked(pair: tuple[ModelRef, ModelRef]) -> None:
    plan = sample_plan(target=pair[0], draft=pair[1])
    with pytest.raises(ValueError, match="earlier_outputs is 9; autoregressive searches none: expected the policy"):
        swiftspec.Engine(plan, policy="autoregressive", earlier_outputs=9)
