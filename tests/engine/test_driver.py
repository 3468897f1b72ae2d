from collections import deque

import pytest
import torch
from torch import Tensor

from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, ForwardBatch, Rows, as_candidates
from swiftspec.engine.model.sampling.sampler import Sampler, top_candidates
from swiftspec.policies.effects import (
    Candidates,
    Commit,
    DraftForward,
    Effect,
    ForwardKind,
    KeepKV,
    Message,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    TargetExit,
    TargetFinish,
    TargetForward,
    Verdict,
)
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.timing.timeline import Phase, Span
from tools.run_alone import run_alone

VOCAB_SIZE = 8


class RecordingModel:
    """Logits that favour token + 1, or token + 2 after half of the layers; remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def forward(self, batch: ForwardBatch) -> BatchResult:
        self.calls.append((batch.kind, *batch.entries))
        (entry,) = batch.entries
        tokens = [entry.tokens[-1]] if isinstance(entry, Chunk) else [row.token for row in entry.rows]
        error = 1 if batch.kind is ForwardKind.FIRST_HALF else 0
        logits = torch.stack([self._logits(token + error) for token in tokens])
        candidates = as_candidates(*top_candidates(logits, batch.top_k)) if batch.top_k else ()
        return BatchResult((logits,), (candidates,))

    def check(self, batch: ForwardBatch) -> None:
        pass

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        self.calls.append(("keep", sequence, slots, num_verified))

    def reset(self, sequence: int, tenant: int = 0) -> None:
        self.calls.append(("reset", sequence))

    def _logits(self, token: int) -> Tensor:
        return torch.roll(torch.arange(VOCAB_SIZE, 0.0, -1.0), token + 1)


def run(
    effects: list[Effect], models: dict[Role, RecordingModel]
) -> tuple[list[object], list[tuple[int, ...]], list[Phase]]:
    answers: list[object] = []
    committed: list[tuple[int, ...]] = []

    def program() -> Program:
        for effect in effects:
            answers.append((yield effect))

    spans = run_alone(program(), models=models, sampler=Sampler(), commit=committed.append)
    return answers, committed, [span.phase for span in spans]


def test_every_effect_reaches_its_model_and_is_answered() -> None:
    models = {role: RecordingModel() for role in Role}
    rows = (Row(3, 4, 0), Row(6, 5, 1))
    effects: list[Effect] = [
        Prefill(Role.TARGET, (1, 2)),
        Prefill(Role.DRAFT, (1, 2)),
        DraftForward(rows, 2),
        TargetForward(rows),
        KeepKV(Role.DRAFT, (1,), 0),
        Commit((4, 5)),
    ]
    answers, committed, phases = run(effects, models)
    assert answers[:2] == [3, None]
    candidates = answers[2]
    assert isinstance(candidates, tuple)
    assert [candidate.tokens for candidate in candidates] == [(4, 5), (7, 0)]
    assert all(isinstance(candidate, Candidates) and candidate.logprobs[0] < 0 for candidate in candidates)
    assert answers[3] == (4, 7)
    assert committed == [(4, 5)]
    assert phases == [
        Phase.PREFILL, Phase.PREFILL, Phase.EXPAND, Phase.VERIFY, Phase.COMPACT, Phase.COMMIT
    ]  # fmt: skip  # in the order of time, read as one line
    exact = ForwardKind.EXACT
    assert models[Role.TARGET].calls == [("reset", 0), (exact, Chunk(0, (1, 2))), (exact, Rows(0, rows))]
    assert models[Role.DRAFT].calls[-1] == ("keep", 0, (1,), 0)


def test_a_fuzzy_forward_and_halves_of_one_are_told_apart() -> None:
    models = {role: RecordingModel() for role in Role}
    rows = (Row(3, 4, 0),)
    effects: list[Effect] = [DraftForward(rows, 1, fuzzy=True), TargetExit(rows, 2), TargetFinish()]
    (fuzzy, guesses, choices), _, phases = run(effects, models)
    assert isinstance(fuzzy, tuple)
    assert isinstance(guesses, tuple)
    assert [candidate.tokens for candidate in (*fuzzy, *guesses)] == [(4,), (5, 6)]
    assert choices == (4,)
    assert phases == [Phase.FUZZY, Phase.EXIT, Phase.FINISH]
    asked = Rows(0, rows)
    assert models[Role.DRAFT].calls == [("reset", 0), (ForwardKind.LAYER_PARALLEL, asked)]
    assert models[Role.TARGET].calls == [
        ("reset", 0), (ForwardKind.FIRST_HALF, asked), (ForwardKind.SECOND_HALF, asked)
    ]  # fmt: skip  # in the order of time, read as one line


def test_an_error_of_the_program_is_not_swallowed() -> None:
    with pytest.raises(KeyError):
        run([Prefill(Role.DRAFT, (1,))], {Role.TARGET: RecordingModel()})


def test_a_request_that_is_ended_early_keeps_whole_rounds() -> None:
    def program() -> Program:
        yield Prefill(Role.TARGET, (1,))
        yield Commit((2,))
        while True:
            yield TargetForward((Row(3, 4, 0),))
            yield KeepKV(Role.TARGET, (0,), 1)

    models = {Role.TARGET: RecordingModel()}
    ended: list[tuple[list[Phase], int]] = []

    def note(_: int, spans: list[Span], rows_asked: int, error: Exception | None) -> None:
        assert error is None
        ended.append(([span.phase for span in spans], rows_asked))

    driver = GroupDriver(models=models, limits=BatchLimits(), inbox=NoMessages(), ended=note)
    part = RequestPart(role=Role.TARGET, models=models, peers=(), commit=lambda _: None, sampler=Sampler())
    driver.add(5, program(), part, is_elastic=False)
    for _ in range(3):
        driver.advance()
        driver.step()
    driver.remove(5)
    driver.remove(5)
    assert ended == [([Phase.PREFILL, Phase.COMMIT], 2)]


def test_a_message_that_another_request_has_read_is_not_waited_for() -> None:
    heard: list[tuple[int, object]] = []
    inboxes: list[deque[Message]] = [deque(), deque()]
    wire: deque[list[tuple[int, Message]]] = deque([[], [(0, Verdict((7,)))]])  # what each look finds

    class Peer:
        def __init__(self, number: int) -> None:
            self.number = number

        def send(self, message: Message) -> None:
            raise AssertionError(message)

        def poll(self) -> Message | None:
            for number, message in wire.popleft():
                inboxes[number].append(message)
            return self.take()

        def take(self) -> Message | None:
            return inboxes[self.number].popleft() if inboxes[self.number] else None

    def program(number: int) -> Program:
        heard.append((number, (yield Receive())))

    driver = GroupDriver(models={}, limits=BatchLimits(), inbox=NoMessages(), ended=lambda *_: None)
    for number in range(2):
        part = RequestPart(role=Role.TARGET, models={}, peers=[Peer(number)], commit=lambda _: None, sampler=Sampler())
        driver.add(number, program(number), part, is_elastic=False)
    driver.advance()
    assert heard == [(0, Verdict((7,)))]
    assert len(driver) == 1


class NoMessages:
    def pump(self) -> None:
        pass

    def wait(self, until_s: float | None) -> None:
        raise AssertionError(until_s)
