"""All requests of an engine, drafted for by one server."""

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from swiftspec.drafter.drafted_request import DraftedRequest
from swiftspec.drafter.known_texts import KnownTexts, Row
from swiftspec.engine.channel.introduction import Introduced, Introduction
from swiftspec.engine.channel.zmq_channel import Channel, Payload
from swiftspec.models.published import MOST_PADDING
from swiftspec.policies.effects import PeerError, Probe, Stop
from swiftspec.policies.recovery import served_patience_s

_FIRST_PATIENCE_S = 0.1
_LEAST_STEPS, _MOST_STEPS = 4, 64  # whose times are known, and remembered
_ASK_EVERY_S, _SAY_AFTER_S = 0.5, 5.0
_REPORT_EVERY_S = 10.0
_log = logging.getLogger("vllm.swiftspec")  # so that it is written where vLLM's own log is


@dataclass(slots=True)
class Counts:
    """What a session has done: rows of its steps, those with drafts, and their tokens; waits of steps for drafts."""

    steps: int = 0
    rows: int = 0
    drafted: int = 0
    tokens: int = 0
    waited_s: float = 0.0
    longest_wait_s: float = 0.0
    losses: int = 0

    def __str__(self) -> str:
        if not self.rows:
            return "no steps"
        return (
            f"{self.steps} steps, {self.drafted / self.rows:.0%} of their rows with drafts of "
            f"{self.tokens / max(1, self.drafted):.2f} tokens, for which a step waited "
            f"{1e3 * self.waited_s / self.steps:.2f} ms in the mean and {1e3 * self.longest_wait_s:.1f} at most; "
            f"{self.losses} drafts lost"
        )


class Session:
    """The drafts of an engine's requests.

    vocab_size, vocabulary: of the engine's model, the latter as a digest. num_draft_tokens: most that the engine
    verifies. limit_s: longest wait of a step; the time of two steps if not given. introduction: None without a server.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        address: str,
        num_draft_tokens: int,
        max_context: int,
        vocab_size: int,
        vocabulary: str,
        limit_s: float | None = None,
    ) -> None:
        self._channel, self._address = channel, address
        self._num_draft_tokens, self._max_context = num_draft_tokens, max_context
        self._vocab_size, self._vocabulary, self._limit_s = vocab_size, vocabulary, limit_s
        self._introduced = Introduced()
        self._payload = Payload(takes=self._introduced.takes)
        self.introduction: Introduction | None = None
        self._requests: KnownTexts[tuple[int, DraftedRequest]] = KnownTexts()
        self._open: set[int] = set()
        self._steps_s: deque[float] = deque(maxlen=_MOST_STEPS)
        self._proposed_s: float | None = None
        self._num_rows = 0  # of the last step
        # A server may still have requests of an engine that ended, whose numbers are others.
        self._next_number = secrets.randbelow(1 << 31)
        self.counts = Counts()  # since they were logged
        self._began_s = self._logged_s = time.perf_counter()
        self._ask_at_s, self._said = 0.0, ""
        self._greeting = channel.open(self._new_number(), self._payload)
        self._look_for_server()

    def propose(self, rows: Sequence[Row]) -> list[tuple[int, ...]]:
        """Draft tokens of every row of the engine's batch after a step, to be verified by the next one."""
        now_s, self._num_rows = time.perf_counter(), len(rows)
        if self._proposed_s is not None:
            self._steps_s.append(now_s - self._proposed_s)
        self._channel.pump()
        self._look_for_server()
        known, gone = self._requests.step(rows)
        for number, request in gone:
            self._end(number, request)
        running = [self._advanced(row, found) for row, found in zip(rows, known, strict=True)]
        waits_s = time.perf_counter()
        self._wait([request for request in running if request is not None])
        self._proposed_s = time.perf_counter()
        drafts = [() if request is None else request.draft[: self._num_draft_tokens] for request in running]
        self._count(drafts, self._proposed_s - waits_s)
        return drafts

    def _advanced(self, row: Row, found: tuple[int, DraftedRequest] | None) -> DraftedRequest | None:
        """A row's request after its step; None if it has no draft."""
        if found is None:
            found = self._begin(row)
        elif row.sampled:
            found[1].verified(row.sampled)
        if found is None:
            return None
        self._requests.keep(row, found)
        return found[1]

    def _begin(self, row: Row) -> tuple[int, DraftedRequest] | None:
        introduction = self.introduction
        if introduction is None or len(self._open) >= introduction.num_requests:
            return None
        most = min(self._max_context, introduction.max_context)
        if row.length >= most:
            return None
        number = self._new_number()
        self._open.add(number)
        channel = self._channel.open(number, self._payload)
        request = DraftedRequest(
            channel, introduction.policy, row.text, max_tokens=most, patience_s=lambda: self.patience_s
        )
        return number, request

    def _count(self, drafts: Sequence[Sequence[int]], waited_s: float) -> None:
        counts = self.counts
        counts.steps += bool(drafts)
        counts.rows += len(drafts)
        counts.drafted += sum(map(bool, drafts))
        counts.tokens += sum(map(len, drafts))
        counts.waited_s += waited_s
        counts.longest_wait_s = max(counts.longest_wait_s, waited_s)
        if (now_s := time.perf_counter()) - self._logged_s > _REPORT_EVERY_S:
            if counts.steps and self.introduction is not None:
                _log.info("%s: %s", self._address, counts)
            self.counts, self._logged_s = Counts(), now_s

    def _end(self, number: int, request: DraftedRequest) -> None:
        self.counts.losses += request.num_losses
        request.end()
        self._channel.close(number)
        self._open.discard(number)

    def _new_number(self) -> int:
        self._next_number = (self._next_number + 1) % (1 << 32)
        return self._next_number

    @property
    def patience_s(self) -> float:
        """Longest wait of a step for drafts."""
        if self._limit_s is not None:
            return self._limit_s
        if len(self._steps_s) < _LEAST_STEPS:
            return _FIRST_PATIENCE_S
        return served_patience_s(median(self._steps_s), self._num_rows)

    def _wait(self, requests: Sequence[DraftedRequest]) -> None:
        """Until every request has its draft, or does without."""
        while waits_s := [until_s for each in requests if (until_s := each.waits_until_s) is not None]:
            if sum(each.look() for each in requests):
                continue
            left_s = min(waits_s) - time.perf_counter()
            if left_s > 0:
                self._channel.socket.poll(math.ceil(1e3 * left_s))
            self._channel.pump()

    def _look_for_server(self) -> None:
        """Ask who drafts, until somebody answers who can; and again once another one answers."""
        self._greeting.take()
        introduced = self._introduced
        if introduced.latest != introduced.expected:
            self._meet(introduced.latest)
        now_s = time.perf_counter()
        if self.introduction is not None or now_s < self._ask_at_s:
            return
        if now_s - self._began_s > _SAY_AFTER_S and not introduced.latest:
            self._say(f"nobody answers at {self._address}: no draft server runs there, or it has another secret")
        self._greeting.send(Probe())
        self._ask_at_s = now_s + _ASK_EVERY_S

    def _meet(self, content: bytes) -> None:
        """Take a server's introduction: requests of the one before are forgotten."""
        self._introduced.expected = content
        for number, request in self._requests.step(())[1]:
            self._end(number, request)
        try:
            introduction = Introduction.decode(content)
            objection = self._objection(introduction)
        except PeerError as error:
            objection = str(error)
        if objection:
            self.introduction = None
            self._say(f"the draft server at {self._address} is not used: {objection}")
            return
        self.introduction = introduction
        self._greeting.send(Stop())
        _log.info("drafts come from %s: %s", self._address, introduction.policy)

    def _objection(self, server: Introduction) -> str:
        """What speaks against a server, a clause; empty if it can draft."""
        if server.vocabulary and self._vocabulary and server.vocabulary != self._vocabulary:
            return "its draft has another vocabulary than this model"
        if abs(server.vocab_size - self._vocab_size) > MOST_PADDING:
            return f"its draft has a vocabulary of {server.vocab_size} tokens, this model one of {self._vocab_size}"
        most, asked = server.policy.target_rows - 1, self._num_draft_tokens
        if most < asked:
            return f"num_speculative_tokens is {asked}, and {server.policy.name} there sends at most {most}"
        return ""

    def _say(self, sentence: str) -> None:
        """Warn, once until something else is to be said."""
        if sentence != self._said:
            self._said = sentence
            _log.warning("%s; decoding goes on without drafts", sentence)
