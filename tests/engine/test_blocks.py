"""The bundled block drafter in its target's process: what requests say is the target's own, however many there are."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.requests import Task
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.policies import Layout, Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.profiler.acceptance import record_trace
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.simulator.driver import simulate
from swiftspec.timing.timeline import Phase
from tests.builders import constant_profile
from tests.engine.blocks import write_block_drafter
from tests.engine.conftest import start_engine
from tests.engine.fine_tunes import fine_tune

TARGET = ModelRef(model="demo/target", dtype="float32")
PAIR = (TARGET, ModelRef(model="demo/block", dtype="float32"))
TEXTS = (
    "import json\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n\n    def read(self):\n",
    "x",
    "def main(argv=None):\n    parser = argparse.ArgumentParser(description=__doc__)\n" * 3,
    "for name in sorted(names):\n    if name not in seen:\n",
    "    except OSError as error:\n        raise",
)
LENGTHS = (26, 8, 18, 13, 21)  # so that requests leave one after another
SAMPLERS = (Sampler(), Sampler(), Sampler(temperature=0.8, seed=5), Sampler(), Sampler(temperature=1.0, seed=2))
POLICIES = (
    make_policy("parallel_chain"),
    make_policy("parallel_chain", num_draft_tokens=1),
    make_policy("parallel_tree", verify_rows=8, num_masks=4, num_candidates=3),
    make_policy("parallel_tree", verify_rows=12, num_masks=6, least_probability=0.1),
)
AUTOREGRESSIVE = make_policy("autoregressive")


# Ranks that wait for each other take many times as long on busy cores.
@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.alone)], ids=["whole", "ranks"])
def engine(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    if request.param > len(os.sched_getaffinity(0)):
        pytest.skip("two ranks need two cores")
    ranks = {Role.TARGET: request.param} if request.param > 1 else None
    # Fewer at once than there are requests: the last ones join when the first leave.
    with start_engine(PAIR, Layout.COLOCATED, ranks=ranks, admission=AdmissionLimits(max_running=3)) as engine:
        yield engine


def requests() -> list[Request]:
    tokenizer = Tokenizer(model_directory(TARGET.model))
    return [
        Request(prompt=tokenizer.encode(text), max_new_tokens=length)
        for text, length in zip(TEXTS, LENGTHS, strict=True)
    ]


def generate(engine: Launcher, policy: Policy, number: int, *, tenant: int = 0) -> Generation:
    task = Task(prompt_id=str(number), request=requests()[number], tenant=tenant)
    stream = engine.stream(policy, task, sampler=SAMPLERS[number])
    try:
        while True:
            next(stream)
    except StopIteration as finished:
        generation: Generation = finished.value
        return generation


@pytest.fixture(scope="module")
def alone(engine: Launcher) -> list[tuple[int, ...]]:
    """What the target says by itself."""
    return [generate(engine, AUTOREGRESSIVE, number).tokens for number in range(len(TEXTS))]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_requests_that_come_and_go_say_what_the_target_says(
    engine: Launcher, alone: list[tuple[int, ...]], policy: Policy
) -> None:
    def late(number: int) -> Generation:
        time.sleep(0.005 * number)
        return generate(engine, policy, number)

    with ThreadPoolExecutor(len(TEXTS)) as threads:
        found = list(threads.map(late, range(len(TEXTS))))
    assert [generation.tokens for generation in found] == alone
    for generation in found:
        assert any(span.phase is Phase.EXPAND and span.model is Role.DRAFT for span in generation.timeline.spans)


def test_the_drafter_proposes_what_the_target_writes(engine: Launcher) -> None:
    rounds = [len(generate(engine, POLICIES[0], number).timeline.phase(Phase.VERIFY)) for number in (0, 2, 3)]
    assert sum(rounds) < 0.75 * (LENGTHS[0] + LENGTHS[2] + LENGTHS[3])


def test_rounds_are_those_that_a_trace_predicts(engine: Launcher, alone: list[tuple[int, ...]]) -> None:
    """Of a chain a trace knows all there is to know, whatever the machine's speed."""
    greedy = [number for number, sampler in enumerate(SAMPLERS) if not sampler.temperature]
    trace = record_trace(
        target=PAIR[0],
        draft=PAIR[1],
        prompts=[(str(number), requests()[number].prompt) for number in greedy],
        outputs=[alone[number] for number in greedy],
        max_new_tokens=max(LENGTHS),
        num_candidates=2,
        num_threads=1,
        progress=lambda *_: None,
    )
    profile = constant_profile(expand_s=1.0, verify_s=1.0)
    simulated = simulate(POLICIES[0], degrees={Role.TARGET: 1}, profile=profile, trace=trace)
    for number, predicted in zip(greedy, simulated, strict=True):
        measured = generate(engine, POLICIES[0], number).timeline
        assert [span.tokens for span in measured.commits] == [span.tokens for span in predicted.commits]


def test_draft_probabilities_decide_where_they_are_asked_for(engine: Launcher) -> None:
    sampler = Sampler(temperature=1.0, acceptance="residual", seed=3)
    for policy in POLICIES:
        found = engine.generate(policy, requests()[0], request_id="residual", sampler=sampler)
        assert len(found.tokens) == LENGTHS[0]


def test_a_policy_for_another_draft_is_refused(engine: Launcher) -> None:
    for name in ("serial_chain", "head_chain"):
        with pytest.raises(ValueError, match=f"policy is {name}, which needs a .* draft; this one is"):
            generate(engine, make_policy(name), 0)


def test_a_drafter_with_devices_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="reads the target's hidden states; expected a co-located policy"):
        start_engine(PAIR, Layout.DISAGGREGATED).close()


def test_a_drafter_of_another_target_is_refused(tmp_path: Path) -> None:
    drafter = write_block_drafter(tmp_path, model_directory(TARGET.model), hidden_size=96)
    with pytest.raises(ValueError, match="hidden_size is 96; expected 256, the target's hidden size"):
        start_engine((TARGET, ModelRef(model=str(drafter), dtype="float32")), Layout.COLOCATED).close()


def test_a_quantised_target_has_a_drafter_that_is_not() -> None:
    pair = tuple(reference.model_copy(update={"dtype": "int8"}) for reference in PAIR)
    with start_engine((pair[0], pair[1]), Layout.COLOCATED) as engine:
        expected = generate(engine, AUTOREGRESSIVE, 0).tokens
        assert all(generate(engine, policy, 0).tokens == expected for policy in POLICIES)


def test_tenants_share_a_drafter(tmp_path: Path) -> None:
    tuned = fine_tune(model_directory(TARGET.model), tmp_path / "tuned", layers=[1], seed=5)
    with start_engine(PAIR, Layout.COLOCATED, tenants=[str(tuned)]) as engine:
        for tenant in (0, 1):
            expected = generate(engine, AUTOREGRESSIVE, 0, tenant=tenant).tokens
            assert all(generate(engine, policy, 0, tenant=tenant).tokens == expected for policy in POLICIES)
