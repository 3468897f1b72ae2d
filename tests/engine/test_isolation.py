"""An error that one request causes ends that request, and no other one: on a real model, at random places."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, DeviceError, ForwardBatch, Model, Rows
from swiftspec.engine.model.models import with_vocabulary
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.policies import Request, make_policy
from swiftspec.policies.effects import (
    Candidates,
    DraftForward,
    Effect,
    ForwardKind,
    KeepKV,
    Prefill,
    Program,
    Role,
    Row,
    TargetForward,
)
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.timing.timeline import Span
from tests.engine.pairs import VOCAB_SIZE, references, write_pair
from tests.engine.test_driver import NoMessages

NUM_REQUESTS = 6
NUM_TOKENS = 24
POLICIES = ("autoregressive", "serial_chain", "serial_tree", "prompt_lookup", "easyspec")


class BrokenError(Exception):
    """What the requests of these tests raise."""


@dataclass(kw_only=True)
class Outcome:
    """What became of a request."""

    tokens: list[int] = field(default_factory=list)
    ends: list[Exception | None] = field(default_factory=list)


Break = Callable[[Effect], Effect]


def raises(_: Effect) -> Effect:
    raise BrokenError("as this test wants it")


def with_rows(*rows: Row) -> Break:
    return lambda _: TargetForward(rows)


# What a program does instead of its next effect: it raises, or asks for what there is not.
FAULTS: dict[str, Break] = {
    "raises": raises,
    "token": with_rows(Row(VOCAB_SIZE, 3, 0)),
    "negative token": with_rows(Row(-5, 3, 0)),
    "huge token": with_rows(Row(2**70, 3, 0)),
    "position": with_rows(Row(1, 10_000, 0)),
    "slot": with_rows(Row(1, 3, 1 << 60)),
    "no rows": with_rows(),
    "too many rows": with_rows(*[Row(1, 3, 0)] * 400),
    "draft's token": lambda _: DraftForward((Row(VOCAB_SIZE, 3, 0),), 1),
    "no prompt": lambda _: Prefill(Role.TARGET, ()),
    "prompt": lambda _: Prefill(Role.TARGET, (1, 2, VOCAB_SIZE)),
    "slots": lambda _: KeepKV(Role.TARGET, (99,), 0),
    "no effect": lambda _: "nothing",  # type: ignore[dict-item, return-value]  # a program of anybody's
}


def broken(program: Program, at: int, fault: Break, *, stubborn: bool) -> Program:
    """A program that does something else than its effect number `at`; a stubborn one raises, too, when it is closed."""
    answer: Any = None
    try:
        for number in range(10_000):
            effect = program.send(answer)
            answer = yield fault(effect) if number == at else effect
    except StopIteration:
        return
    finally:
        if stubborn:
            raise BrokenError("while it was closed")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    return references(write_pair(tmp_path_factory.mktemp("isolation"), architecture="llama"))


@pytest.fixture(scope="module")
def models(pair: tuple[ModelRef, ModelRef]) -> dict[Role, Model]:
    torch.set_num_threads(1)
    target, draft = (
        ModelRunner.load(each, max_context=128, tree_slots=64, num_sequences=NUM_REQUESTS) for each in pair
    )
    return {Role.TARGET: target, Role.DRAFT: draft}


def request(number: int) -> Request:
    chance = random.Random(number)
    prompt = tuple(chance.randrange(1, VOCAB_SIZE) for _ in range(chance.choice((2, 9, 40))))
    return Request(prompt=prompt, max_new_tokens=NUM_TOKENS, eos_token_ids=frozenset())


def run(models: dict[Role, Model], programs: Iterable[tuple[int, Program]], **takes: Any) -> dict[int, Outcome]:
    """Run programs together. takes: by `n<number>`, what takes the tokens of that request."""
    outcomes: dict[int, Outcome] = {}

    def ended(number: int, _spans: list[Span], _rows_asked: int, error: Exception | None) -> None:
        outcomes[number].ends.append(error)

    driver = GroupDriver(models=models, limits=BatchLimits(), inbox=NoMessages(), ended=ended)
    for number, program in programs:
        outcome = outcomes[number] = Outcome()
        part = RequestPart(
            role=Role.TARGET,
            sequence=number,
            models=models,
            peers=(),
            commit=takes.get(f"n{number}", outcome.tokens.extend),
            sampler=Sampler(),
        )
        driver.add(number, program, part, is_elastic=False)
    with torch.inference_mode():
        while len(driver):
            driver.advance()
            driver.step()
    return outcomes


def program(policy: str, number: int) -> Program:
    return make_policy(policy).programs(request(number))[Role.TARGET]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_errors_of_some_requests_change_nothing_for_the_others(models: dict[Role, Model], data: st.DataObject) -> None:
    policies = [data.draw(st.sampled_from(POLICIES), label="policy") for _ in range(NUM_REQUESTS)]
    faults = data.draw(
        st.dictionaries(st.integers(0, NUM_REQUESTS - 1), st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4)
    )
    programs = []
    for number, policy in enumerate(policies):
        each = program(policy, number)
        if number in faults:
            at, stubborn = data.draw(st.integers(0, 40), label="at"), data.draw(st.booleans(), label="stubborn")
            each = broken(each, at, FAULTS[faults[number]], stubborn=stubborn)
        programs.append((number, each))
    outcomes = run(models, programs)
    for number, policy in enumerate(policies):
        alone = run(models, [(number, program(policy, number))])[number]
        outcome = outcomes[number]
        assert len(outcome.ends) == 1
        if number in faults:
            assert outcome.tokens == alone.tokens[: len(outcome.tokens)]
        else:
            assert outcome == alone


def test_an_error_of_whoever_takes_the_tokens_ends_that_request(models: dict[Role, Model]) -> None:
    def refuse(_: tuple[int, ...]) -> None:
        raise BrokenError("full")

    outcomes = run(models, [(number, program("serial_tree", number)) for number in range(3)], n1=refuse)
    assert isinstance(outcomes[1].ends[0], BrokenError)
    assert [outcomes[number].ends for number in (0, 2)] == [[None], [None]]
    assert [len(outcomes[number].tokens) for number in (0, 2)] == [NUM_TOKENS] * 2


class BreaksOff:
    """A model whose forward breaks off now and then, for no reason that its input has."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._num_calls = 0
        self.check, self.keep, self.reset = model.check, model.keep, model.reset

    def forward(self, batch: ForwardBatch) -> BatchResult:
        self._num_calls += 1
        if self._num_calls == 9:
            raise MemoryError("allocate memory")
        return self._model.forward(batch)


def test_a_forward_that_breaks_off_ends_its_requests_and_the_next_ones_run(models: dict[Role, Model]) -> None:
    breaking = {**models, Role.TARGET: BreaksOff(models[Role.TARGET])}
    outcomes = run(breaking, [(number, program("autoregressive", number)) for number in range(3)])
    assert {type(outcome.ends[0]) for outcome in outcomes.values()} <= {MemoryError, type(None)}
    assert any(isinstance(outcome.ends[0], MemoryError) for outcome in outcomes.values())
    assert run(breaking, [(0, program("serial_chain", 0))])[0].ends == [None]


def test_a_gpu_that_has_failed_is_not_asked_again(models: dict[Role, Model]) -> None:
    class Failed(BreaksOff):
        def forward(self, batch: ForwardBatch) -> BatchResult:
            raise DeviceError("an illegal memory access was encountered")

    with pytest.raises(DeviceError):
        run({**models, Role.TARGET: Failed(models[Role.TARGET])}, [(0, program("autoregressive", 0))])


@pytest.mark.parametrize("own_size", [VOCAB_SIZE - 7, VOCAB_SIZE, VOCAB_SIZE + 31])
def test_a_draft_of_another_vocabulary_reads_and_proposes_what_its_target_has(own_size: int) -> None:
    class Draft:
        """Favours its largest token."""

        def forward(self, batch: ForwardBatch) -> BatchResult:
            (entry,) = batch.entries
            tokens = entry.tokens if isinstance(entry, Chunk) else [row.token for row in entry.rows]
            assert max(tokens) < own_size
            logits = torch.arange(float(own_size)).repeat(len(tokens), 1)
            best = [tuple(range(own_size - 1, own_size - 1 - batch.top_k, -1))] * len(tokens)
            found = tuple(Candidates(each, (-1.0,) * len(each)) for each in best)
            return BatchResult((logits,), (found,) if batch.top_k else ())

        def check(self, batch: ForwardBatch) -> None:
            pass

        def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
            pass

        def reset(self, sequence: int, tenant: int = 0, /) -> None:
            pass

    draft = with_vocabulary(Draft(), own_size=own_size, size=VOCAB_SIZE)
    rows = (Row(VOCAB_SIZE - 1, 3, 0), Row(2, 4, 1))
    result = draft.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, rows),), 3))
    assert result.logits[0].shape == (2, VOCAB_SIZE)
    assert all(token < VOCAB_SIZE for found in result.candidates[0] for token in found.tokens)
    largest = min(own_size, VOCAB_SIZE) - 1
    assert result.candidates[0][0].tokens == (largest, largest - 1, largest - 2)
    chunk = draft.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, (VOCAB_SIZE - 1, 4)),)))
    assert chunk.logits[0].argmax(dim=-1)[0] == largest
