"""Many requests at once on real engines: what each of them says is what it says alone."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import pytest

import swiftspec
from swiftspec.artifacts.plan import Plan
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.files.document import ModelRef
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.asks import equal_shares
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.costs import RoundCosts
from swiftspec.timing.step_costs import ForwardCost, StepCosts
from swiftspec.timing.timeline import Phase
from tests.cli.samples import plan as sample_plan
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.conftest import start_engine, two_cores
from tests.engine.pairs import VOCAB_SIZE, references, with_mask_token, write_pair
from tests.engine.processes import until
from tests.engine.victims import pid_of, wait_until_ready

EIGHT = AdmissionLimits(max_running=8)
PROMPTS = tuple(
    tuple(random.Random(number).randrange(1, VOCAB_SIZE) for _ in range(length))
    for number, length in enumerate((3, 40, 9, 150, 1, 17, 64, 25, 5, 90))
)
SAMPLERS = (Sampler(), Sampler(temperature=0.8, top_p=0.95, seed=3))
Work = tuple[tuple[int, ...], Sampler]
WORK: tuple[Work, ...] = tuple((prompt, SAMPLERS[number % 3 == 2]) for number, prompt in enumerate(PROMPTS))


def request_of(prompt: tuple[int, ...], max_new_tokens: int = 48) -> Request:
    return Request(prompt=prompt, max_new_tokens=max_new_tokens, eos_token_ids=frozenset({0}))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    return references(with_mask_token(write_pair(tmp_path_factory.mktemp("load"), architecture="llama")))


@pytest.fixture(scope="module")
def alone(llama: tuple[ModelRef, ModelRef]) -> tuple[tuple[int, ...], ...]:
    """What the target says by itself to each prompt."""
    with start_engine(llama, Layout.TARGET_ONLY) as engine:
        return tuple(
            engine.generate(Autoregressive(), request_of(prompt), request_id="x", sampler=sampler).tokens
            for prompt, sampler in WORK
        )


def together(engine: Launcher, policy: Policy, *, gap_s: float = 0.002) -> list[Generation]:
    """All prompts, each of them by a thread of its own; they come one after another."""

    def one(number: int) -> Generation:
        time.sleep(gap_s * number)
        prompt, sampler = WORK[number]
        stream = engine.stream(policy, Task(prompt_id=str(number), request=request_of(prompt)), sampler=sampler)
        try:
            while True:
                next(stream)
        except StopIteration as finished:
            generation: Generation = finished.value
            return generation

    with ThreadPoolExecutor(len(WORK)) as threads:
        return list(threads.map(one, range(len(WORK))))


ALL = (
    *(make_policy(name) for name, policy in POLICIES.items() if DraftKind.SERIAL in policy.drafts),
    make_policy("suffix_or_draft", least_score=0.5, earlier_outputs=3),
)


@pytest.fixture(scope="module")
def colocated(llama: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(llama, Layout.COLOCATED, admission=EIGHT) as engine:
        yield engine


@pytest.fixture(scope="module")
def disaggregated(llama: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(llama, Layout.DISAGGREGATED, admission=EIGHT, patience_s=5.0) as engine:
        yield engine


@pytest.fixture(scope="module")
def two_targets(llama: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(llama, Layout.DISAGGREGATED, admission=EIGHT, patience_s=5.0, target_groups=2) as engine:
        yield engine


@two_cores
@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_each_request_among_many_says_what_it_says_alone(
    request: pytest.FixtureRequest, policy: Policy, alone: tuple[tuple[int, ...], ...]
) -> None:
    fixture = "colocated" if policy.layout is not Layout.DISAGGREGATED else "disaggregated"
    engine: Launcher = request.getfixturevalue("two_targets" if policy.target_groups == 2 else fixture)
    generations = together(engine, policy)
    assert tuple(generation.tokens for generation in generations) == alone
    assert [generation.losses for generation in generations] == [0] * len(WORK)


@dataclass(frozen=True)
class Moody:
    """A control that decides at random, and often against drafts."""

    learns: ClassVar[bool] = True
    weighs_drafts: ClassVar[bool] = False
    rng: random.Random

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        wanted = [self.rng.choice((1, 1, self.rng.randint(1, 1 + len(each.survival)))) for each in demands]
        return equal_shares(wanted, max_rows)


def test_no_control_changes_what_is_said(llama: tuple[ModelRef, ModelRef], alone: tuple[tuple[int, ...], ...]) -> None:
    costs = StepCosts(verify=ForwardCost(rows=(1,), seconds=(1e-3,)))
    steering = Steering(Moody(random.Random(0)), costs)
    with start_engine(llama, Layout.COLOCATED, admission=EIGHT, steering=steering) as engine:
        for policy in (policy for policy in ALL if policy.layout is Layout.COLOCATED and policy.elastic):
            generations = together(engine, policy)
            assert tuple(generation.tokens for generation in generations) == alone, policy
            if not policy.drafts_from_text:
                rows = [span.rows for each in generations for span in each.timeline.spans if span.phase is Phase.VERIFY]
                assert rows.count(1) > len(rows) / 10
                assert max(rows) > 1


def num_sharing(generations: list[Generation]) -> int:
    """The most requests that one forward computed rows of."""
    starts = [
        (span.role, span.start_s)
        for generation in generations
        for span in generation.timeline.spans
        if span.phase in (Phase.VERIFY, Phase.PREFILL, Phase.EXPAND)
    ]
    return max(starts.count(start) for start in set(starts))


def test_requests_share_forwards(colocated: Launcher) -> None:
    assert num_sharing(together(colocated, make_policy("serial_chain"), gap_s=0.0)) > 3


def test_a_cache_for_three_of_ten_serves_them_all(
    llama: tuple[ModelRef, ModelRef], alone: tuple[tuple[int, ...], ...]
) -> None:
    policy = make_policy("serial_chain")
    limits = AdmissionLimits(max_running=8, num_blocks=30, tree_rows=policy.target_rows)
    with start_engine(llama, Layout.COLOCATED, admission=limits) as engine:
        generations = together(engine, policy)
    assert tuple(generation.tokens for generation in generations) == alone
    assert sum(generation.preemptions for generation in generations) > 0
    assert max(generation.preemptions for generation in generations) <= 3


def test_requests_that_give_way_to_another_client_say_what_they_say_alone(
    llama: tuple[ModelRef, ModelRef], alone: tuple[tuple[int, ...], ...]
) -> None:
    ends: list[list[RequestEvent]] = [[] for _ in WORK]
    with start_engine(llama, Layout.COLOCATED, admission=AdmissionLimits(max_running=2)) as engine:
        for number, (prompt, sampler) in enumerate(WORK):
            if number == len(WORK) - 1:
                until(lambda: any(ends[1]))
            client = "ab"[number == len(WORK) - 1]
            task = Task(prompt_id=str(number), request=request_of(prompt), client=client)
            engine.submit(make_policy("serial_tree"), task, sampler=sampler, deliver=ends[number].append)
        until(lambda: all(heard and isinstance(heard[-1], Generation) for heard in ends))
    generations = [heard[-1] for heard in ends]
    assert tuple(end.tokens for end in generations if isinstance(end, Generation)) == alone
    assert sum(end.preemptions for end in generations if isinstance(end, Generation)) == 1


def test_requests_that_are_left_disturb_nobody(colocated: Launcher, alone: tuple[tuple[int, ...], ...]) -> None:
    """Half are cancelled after their first tokens, or while they wait."""
    policy, rng = make_policy("serial_tree"), random.Random(1)
    events: list[list[RequestEvent]] = []
    runnings = []
    for number in range(60):
        heard: list[RequestEvent] = []
        prompt, sampler = WORK[number % len(WORK)]
        task = Task(prompt_id=str(number), request=request_of(prompt))
        runnings.append(colocated.submit(policy, task, sampler=sampler, deliver=heard.append))
        events.append(heard)
        if number % 2:
            time.sleep(rng.uniform(0.0, 0.02))
            colocated.cancel(runnings[-1])
    until(lambda: all(heard and isinstance(heard[-1], Generation | Exception) for heard in events))
    interrupted = 0
    for number, heard in enumerate(events):
        (end,) = [event for event in heard if not isinstance(event, tuple)]
        assert isinstance(end, Generation), end
        expected = alone[number % len(WORK)]
        interrupted += end.interrupted
        assert end.tokens == (expected[: len(end.tokens)] if end.interrupted else expected)
    assert 0 < interrupted <= 30
    until(lambda: all(group.is_ready and not group.num_open for group in colocated._worker_groups))


@pytest.fixture(scope="module")
def plan(llama: tuple[ModelRef, ModelRef], tmp_path_factory: pytest.TempPathFactory) -> Plan:
    pair = write_pair(tmp_path_factory.mktemp("plan"), architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    return sample_plan(target=target, draft=draft)


TEXTS = [f"def add_{number}(a, b):\n" for number in range(12)]


@two_cores
def test_threads_and_tasks_share_an_engine(plan: Plan) -> None:
    def text(engine: swiftspec.Engine, prompt: str) -> str:
        return "".join(chunk.text for chunk in engine.generate(prompt, max_new_tokens=24))

    with swiftspec.Engine(plan, max_running=1) as engine:
        expected = [text(engine, prompt) for prompt in TEXTS]
    with swiftspec.Engine(plan) as engine, ThreadPoolExecutor(len(TEXTS)) as threads:
        assert list(threads.map(lambda prompt: text(engine, prompt), TEXTS)) == expected
        assert engine.stats().requests == len(TEXTS)

    async def all_at_once() -> list[str]:
        async with swiftspec.AsyncEngine(plan) as engine:

            async def one(prompt: str) -> str:
                return "".join([chunk.text async for chunk in engine.generate(prompt, max_new_tokens=24)])

            return list(await asyncio.gather(*map(one, TEXTS)))

    assert asyncio.run(all_at_once()) == expected


@pytest.fixture(scope="module")
def slow(slow_pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(slow_pair, Layout.DISAGGREGATED, admission=EIGHT, patience_s=0.3, max_restarts=100) as engine:
        yield engine


@pytest.fixture(scope="module")
def undisturbed_all(slow_pair: tuple[ModelRef, ModelRef]) -> tuple[tuple[int, ...], ...]:
    with start_engine(slow_pair, Layout.TARGET_ONLY) as engine:
        return tuple(
            engine.generate(Autoregressive(), request_of(prompt), request_id="x", sampler=sampler).tokens
            for prompt, sampler in WORK
        )


@pytest.mark.alone
@two_cores
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_draft_that_fails_under_load_costs_no_request_its_output(
    slow: Launcher, undisturbed_all: tuple[tuple[int, ...], ...], fault: str
) -> None:
    def break_it() -> None:
        time.sleep(0.1)
        if fault == "killed":
            os.kill(draft, signal.SIGKILL)
            return
        os.kill(draft, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(draft, signal.SIGCONT)

    for _ in range(3):  # on a busy machine all requests may have their drafts before it breaks
        wait_until_ready(slow)
        draft = pid_of(slow, Role.DRAFT)
        breaking = threading.Thread(target=break_it)
        breaking.start()
        generations = together(slow, SwiftSpec())
        breaking.join()
        assert tuple(generation.tokens for generation in generations) == undisturbed_all
        if sum(generation.losses for generation in generations):
            break
    else:
        raise AssertionError("no request has lost its draft")
    wait_until_ready(slow)
    until(lambda: all(draft.has_room for draft in slow._drafts))
    for _ in range(5):  # on a busy machine a draft may be late again
        after = together(slow, SwiftSpec())
        assert tuple(generation.tokens for generation in after) == undisturbed_all
        if not sum(generation.losses for generation in after):
            return
    raise AssertionError("the draft is back, and lost again and again")
