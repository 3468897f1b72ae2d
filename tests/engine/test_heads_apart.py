"""A head in a process of its own: features come with verdicts, and without them the target goes on alone."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue

import pytest

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.files.document import ModelRef
from swiftspec.policies import DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.asynchronous.ssd_head import SsdHead
from swiftspec.policies.effects import Role
from swiftspec.profiler import passes
from swiftspec.profiler.programs import HeadInterruptions
from swiftspec.profiler.shared_steps import HeadSharing
from swiftspec.profiler.steps import step_points
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.timing.timeline import Phase
from tests.engine.checkpoints import write_checkpoint
from tests.engine.conftest import start_engine, two_cores
from tests.engine.heads import write_head
from tests.engine.victims import once, pid_of, wait_until_ready

pytestmark = [pytest.mark.alone, two_cores]
REQUESTS = [Request(prompt=prompt, max_new_tokens=24) for prompt in ((7, 11, 29, 3), (50,), tuple(range(1, 60)))]
LONG = Request(prompt=tuple(range(1, 60)), max_new_tokens=160)
GROUPS = {Role.TARGET: (0,), Role.DRAFT: (1,)}
POLICY = SsdHead(num_draft_tokens=3, branches=6)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    folder = tmp_path_factory.mktemp("head")
    target = write_checkpoint(folder / "target", "llama")
    head = write_head(folder / "head", target, "speculators")
    return ModelRef(model=str(target), dtype="float32"), ModelRef(model=str(head), dtype="float32")


@pytest.fixture(scope="module")
def engine(pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    running = AdmissionLimits(max_running=3)
    with start_engine(pair, Layout.DISAGGREGATED, patience_s=2.0, admission=running, max_restarts=100) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(pair: tuple[ModelRef, ModelRef]) -> dict[Request, tuple[int, ...]]:
    with start_engine(pair, Layout.COLOCATED) as alone:
        plain = make_policy("autoregressive")
        return {
            request: alone.generate(plain, request, request_id="plain", sampler=Sampler()).tokens
            for request in (*REQUESTS, LONG)
        }


def generate(engine: Launcher, request: Request) -> Generation:
    generation = engine.generate(POLICY, request, request_id="apart", sampler=Sampler())
    assert any(span.phase is Phase.EXPAND for span in generation.timeline.of(Role.DRAFT))
    return generation


def test_output_is_the_targets_own(engine: Launcher, expected: dict[Request, tuple[int, ...]]) -> None:
    for request in REQUESTS:
        generation = generate(engine, request)
        assert (generation.tokens, generation.losses) == (expected[request], 0)


def test_requests_at_once_have_their_own_features(engine: Launcher, expected: dict[Request, tuple[int, ...]]) -> None:
    events = [SimpleQueue[RequestEvent]() for _ in REQUESTS]
    for request, each in zip(REQUESTS, events, strict=True):
        engine.submit(POLICY, Task(prompt_id="one of several", request=request), sampler=Sampler(), deliver=each.put)
    for request, each in zip(REQUESTS, events, strict=True):
        while isinstance(event := each.get(timeout=60), tuple):
            pass
        assert isinstance(event, Generation)
        assert (event.tokens, event.losses) == (expected[request], 0)


def test_a_killed_draft_is_back_with_the_next_request(
    engine: Launcher, expected: dict[Request, tuple[int, ...]]
) -> None:
    killed = pid_of(engine, Role.DRAFT)
    kill = once(20, lambda: os.kill(killed, signal.SIGKILL))
    events = SimpleQueue[RequestEvent]()
    num_tokens = 0
    engine.submit(POLICY, Task(prompt_id="killed", request=LONG), sampler=Sampler(), deliver=events.put)
    while isinstance(event := events.get(timeout=60), tuple):
        num_tokens += len(event)
        kill(num_tokens)
    assert isinstance(event, Generation)
    assert (event.tokens, event.losses) == (expected[LONG], 1)
    wait_until_ready(engine)
    generation = generate(engine, REQUESTS[0])
    assert (generation.tokens, generation.losses) == (expected[REQUESTS[0]], 0)


def test_a_policy_without_features_is_refused(engine: Launcher) -> None:
    with pytest.raises(ValueError, match="policy is ssd, which needs a serial or parallel draft; this one is head"):
        engine.generate(make_policy("ssd"), REQUESTS[0], request_id="ssd", sampler=Sampler())


SWEEPS = (
    *passes.new_sweeps(Layout.DISAGGREGATED, repeats=1, device="cpu", kind=DraftKind.HEAD),
    passes.new_resumptions(repeats=1, device="cpu", kind=DraftKind.HEAD),
    HeadInterruptions(target_rows_grid=(1,), draft_rows_grid=(1,), halves_rows_grid=(), repeats=1),
    HeadSharing(index=0, num_requests=2, begin_s=0.0, repeats=1),
)


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: str(sweep.name))
def test_measuring_programs_read_prompts_once_their_features_are_there(engine: Launcher, sweep: Policy) -> None:
    if isinstance(sweep, HeadSharing):
        sweep = replace(sweep, begin_s=time.perf_counter() + 0.5)  # until then the draft is sure to have begun
    request = Request(prompt=tuple(range(1, 60)), max_new_tokens=1)
    wanted = {(Role.DRAFT, Phase.EXPAND), (Role.TARGET, Phase.VERIFY)}
    for _ in range(5):  # a draft without a core for a quarter of a second tells its spans too late
        generation = engine.generate(sweep, request, request_id="59", sampler=Sampler())
        assert generation.losses == 0
        points = {
            (point.role, point.phase, point.rows)
            for point in step_points([generation.timeline], GROUPS, Layout.DISAGGREGATED, ranks={})
        }
        if wanted <= {point[:2] for point in points}:
            break
    assert wanted <= {point[:2] for point in points}
    assert {(role, Phase.PREFILL, 58) for role in Role} < points


def test_a_head_is_not_divided(pair: tuple[ModelRef, ModelRef]) -> None:
    with pytest.raises(ValueError, match="is a head; it cannot be divided by 2 ranks"):
        start_engine(pair, Layout.DISAGGREGATED, ranks={Role.DRAFT: 2}).close()
