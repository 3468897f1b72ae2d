"""An engine with vLLM's interface to a drafter, and a draft server beside it; the target is a rule, so all is known."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from swiftspec.drafter.known_texts import Row
from swiftspec.drafter.session import Session
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.channel.introduction import Introduction
from swiftspec.engine.channel.zmq_channel import Channel
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, ForwardBatch, as_candidates
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.engine.process.draft_server import DraftServer
from swiftspec.policies.base import Policy
from swiftspec.scheduler.batching import BatchLimits

T = TypeVar("T")
VOCAB_SIZE, MAX_CONTEXT = 97, 512
STEP_S = 0.003  # of the target: in less a draft that is asked says nothing yet


def guess(token: int) -> int:
    """What the draft thinks that follows."""
    return (5 * token + 1) % VOCAB_SIZE


def target_token(text: Sequence[int]) -> int:
    """What follows: three times of four what the draft thinks."""
    return guess(text[-1]) if len(text) % 4 else (text[-1] + 2) % VOCAB_SIZE


class GuessingModel:
    """A draft without weights. hangs_s: seconds for which its next forwards hang."""

    def __init__(self) -> None:
        self.hangs_s: list[float] = []

    def forward(self, batch: ForwardBatch) -> BatchResult:
        if self.hangs_s:
            time.sleep(self.hangs_s.pop())
        logits = []
        for entry in batch.entries:
            tokens = entry.tokens if isinstance(entry, Chunk) else [row.token for row in entry.rows]
            rows = torch.zeros(len(tokens), VOCAB_SIZE)
            for index, token in enumerate(tokens):
                rows[index, guess(token)] = 5.0
                rows[index, (token + 2) % VOCAB_SIZE] = 4.0
            logits.append(rows)
        if not batch.top_k:
            return BatchResult(tuple(logits))
        return BatchResult(tuple(logits), tuple(as_candidates(*top_candidates(each, batch.top_k)) for each in logits))

    def check(self, batch: ForwardBatch) -> None:
        pass

    def keep(self, sequence: int, slots: Sequence[int], num_verified: int) -> None:
        pass

    def reset(self, sequence: int, tenant: int = 0) -> None:
        pass


@contextmanager
def draft_server(
    address: str,
    policy: Policy,
    *,
    num_requests: int = 4,
    vocabulary: str = "",
    model: GuessingModel | None = None,
    curve: Curve | None = None,
) -> Iterator[DraftServer]:
    """A draft server in a thread."""
    introduction = Introduction.of(
        policy,
        vocab_size=VOCAB_SIZE,
        vocabulary=vocabulary,
        num_requests=num_requests,
        max_context=MAX_CONTEXT,
    )
    over, made = threading.Event(), []
    bound = threading.Event()

    def run() -> None:
        with Channel(address, bind=True, leads=False, vocab_size=VOCAB_SIZE, curve=curve, serves=True) as channel:
            server = DraftServer(model or GuessingModel(), channel, introduction, limits=BatchLimits())
            made.append(server)
            bound.set()
            server.serve(over.is_set)

    thread = threading.Thread(target=run)
    thread.start()
    assert bound.wait(10)
    try:
        yield made[0]
    finally:
        over.set()
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def session(
    address: str,
    *,
    vocab_size: int = VOCAB_SIZE,
    num_draft_tokens: int = 4,
    limit_s: float | None = 0.5,
    vocabulary: str = "",
) -> Iterator[Session]:
    """A session with whatever is at the address."""
    with Channel(address, bind=False, leads=True, vocab_size=vocab_size) as channel:
        yield Session(
            channel,
            address=address,
            num_draft_tokens=num_draft_tokens,
            max_context=MAX_CONTEXT,
            limit_s=limit_s,
            vocab_size=vocab_size,
            vocabulary=vocabulary,
        )


def meet(session: Session, within_s: float = 20.0) -> None:
    """Wait for a session's server: an engine that steps on may be done before a busy machine has answered it."""
    until_s = time.perf_counter() + within_s
    while session.introduction is None:
        assert time.perf_counter() < until_s, "no server answers"
        session.propose([])
        time.sleep(0.001)


@dataclass
class SteppedEngine:
    """A batch as vLLM has it: rows move into the places of those that end, and no numbers are given to a drafter.

    target: what follows a text. accepted: draft tokens that were right, of all requests. outputs: of those that have
    ended.
    """

    session: Session
    target: Callable[[Sequence[int]], int] = target_token
    accepted: int = 0
    drafted: int = 0
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = np.zeros((16, MAX_CONTEXT), np.int32)
        self.names: list[str] = []
        self.lengths: list[int] = []
        self.ends: list[int] = []
        self.drafts: list[tuple[int, ...]] = []

    def join(self, name: str, prompt: Sequence[int], num_tokens: int) -> None:
        """Add a request; it is read by the next step."""
        row = len(self.names)
        self.tokens[row, : len(prompt)] = prompt
        self.names.append(name)
        self.lengths.append(len(prompt))
        self.ends.append(len(prompt) + num_tokens)
        self.drafts.append(())

    def leave(self, name: str) -> None:
        """Remove a request, as one that is cancelled or preempted; the last row takes its place."""
        row = self.names.index(name)
        self.tokens[row] = self.tokens[len(self.names) - 1]
        _fill(self.names, row)
        _fill(self.lengths, row)
        _fill(self.ends, row)
        _fill(self.drafts, row)

    def step(self, reading: Sequence[str] = ()) -> None:
        """Verify every row's draft, and ask for the next ones. reading: requests whose prompt is still read."""
        time.sleep(STEP_S)
        sampled = [[] if name in reading else self._verified(row) for row, name in enumerate(self.names)]
        ended = [row for row, end in enumerate(self.ends) if self.lengths[row] >= end]
        self.outputs |= {self.names[row]: tuple(self.tokens[row, : self.ends[row]].tolist()) for row in ended}
        rows = [Row(self.tokens[row], self.lengths[row], sampled[row]) for row in range(len(self.names))]
        self.drafts = self.session.propose(rows)
        for name in [self.names[row] for row in ended]:
            self.leave(name)

    def _verified(self, row: int) -> list[int]:
        sampled: list[int] = []
        for drafted in (*self.drafts[row], None):
            text = self.tokens[row, : self.lengths[row]]
            token = self.target(text.tolist())
            sampled.append(token)
            self.tokens[row, self.lengths[row]] = token
            self.lengths[row] += 1
            if drafted != token:
                break
        self.drafted += len(self.drafts[row])
        self.accepted += len(sampled) - 1
        return sampled

    def run(self, most_steps: int = 500) -> None:
        """Step until every request has ended."""
        for _ in range(most_steps):
            if not self.names:
                return
            self.step()
        raise AssertionError("requests are left")


def _fill(values: list[T], row: int) -> None:
    """Put the last value into the place of one that leaves."""
    values[row] = values[-1]
    values.pop()


def expected_output(prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Plain decoding of the rule."""
    text = list(prompt)
    while len(text) < len(prompt) + num_tokens:
        text.append(target_token(text))
    return tuple(text)
