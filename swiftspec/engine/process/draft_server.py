"""A draft for targets of other engines: one model, one policy's draft program for every request that a peer opens."""

import gc
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from swiftspec.engine.channel.introduction import Introduction
from swiftspec.engine.channel.zmq_channel import Channel, Payload, RequestChannel
from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.forward_batch import Model
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.reading import brief
from swiftspec.policies.effects import Message, ProbeReply, Role, Subtree, Verdict
from swiftspec.policies.recovery import ServedDraft
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.timing.timeline import COMPUTING, Span

_SILENT_AFTER_S: Final = 30.0  # a target that is there after all probes, and tells the text again
_LOOK_EVERY_S: Final = 0.25
_GREEDY = Sampler()
_log = logging.getLogger("swiftspec")


@dataclass(slots=True)
class DraftStats:
    """What a draft server has done.

    rounds: verdicts that were answered by a draft. hits: of these, without a forward in between. answer_s: seconds from
    reading a verdict to sending its draft, of all rounds. losses: how often a target went on alone.
    """

    requests: int = 0
    rounds: int = 0
    hits: int = 0
    tokens: int = 0
    answer_s: float = 0.0
    losses: int = 0


class DraftServer:
    """The requests of one peer. model: with as many sequences as `introduction` has requests."""

    def __init__(
        self, model: Model, channel: Channel, introduction: Introduction, *, limits: BatchLimits, mask_token: int = -1
    ) -> None:
        self._models = {Role.DRAFT: model}
        self._channel = channel
        self._introduction, content = introduction, introduction.model_dump_json().encode()
        self._payload = Payload(outgoing=lambda message: content if isinstance(message, ProbeReply) else b"")
        self._mask_token = mask_token
        self._driver = GroupDriver(models=self._models, limits=limits, inbox=self, ended=self._note_end)
        self._free = list(range(introduction.num_requests))  # sequences
        self._served: dict[int, tuple[RequestPart, ServedDraft, _CountedPeer]] = {}
        self._look_at_s = 0.0
        self.stats = DraftStats()

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Draft until `is_over`, which is asked several times a second."""
        gc.disable()  # a garbage collection would make a round much longer
        gc.freeze()
        try:
            with torch.inference_mode():
                while not is_over():
                    was_idle = not len(self._driver)
                    self._channel.pump()
                    self._admit()
                    self._driver.advance()
                    self._driver.step()
                    is_idle = not len(self._driver)
                    self._driver.collect_garbage(is_idle=is_idle and not was_idle)
                    if is_idle and not self._channel.knocking:
                        self.wait(None)
        finally:
            for number in tuple(self._served):
                self._driver.remove(number)
            gc.enable()

    def pump(self) -> None:
        self._channel.pump()

    def wait(self, until_s: float | None) -> None:
        """Wait for a message or a time, and no longer than until somebody is to be looked for."""
        left_s = _LOOK_EVERY_S if until_s is None else min(_LOOK_EVERY_S, until_s - time.perf_counter())
        if left_s <= 0 or not self._channel.socket.poll(int(1e3 * left_s)):  # 0 below a millisecond
            os.sched_yield()

    def _admit(self) -> None:
        """Begin requests that the peer has opened, and end those of which nothing was heard for long."""
        for number in self._channel.knocking:
            if not self._free:
                break
            self._begin(number)
        now_s = time.perf_counter()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_EVERY_S
            served = self._served.items()
            silent = [number for number, (*_, peer) in served if now_s - peer.heard_s > _SILENT_AFTER_S]
            for number in silent:
                self._driver.remove(number)

    def _begin(self, number: int) -> None:
        peer = _CountedPeer(self._channel.open(number, self._payload), self.stats)
        part = RequestPart(
            role=Role.DRAFT,
            sequence=self._free.pop(),
            models=self._models,
            peers=[peer],
            commit=lambda _: None,
            sampler=_GREEDY,
        )
        peer.spans = part.spans
        policy = self._introduction.policy
        draft = ServedDraft(policy, max_tokens=self._introduction.max_context, mask_token=self._mask_token)
        self._served[number] = part, draft, peer
        self._driver.add(number, draft.run(), part, is_elastic=policy.elastic)

    def _note_end(self, number: int, _spans: list[Span], _rows_asked: int, error: Exception | None) -> None:
        if error is not None:
            _log.warning("a request goes on without drafts: %s (%s)", type(error).__name__, brief(error))
        self._channel.close(number)
        part, draft, peer = self._served.pop(number)
        self._free.append(part.sequence)
        self.stats.requests += peer.has_verdict
        self.stats.losses += draft.num_losses


class _CountedPeer:
    """A request's target. heard_s: time of its last message. spans: what is done for the request, a list that grows."""

    def __init__(self, channel: RequestChannel, stats: DraftStats) -> None:
        self._channel, self._stats = channel, stats
        self.spans: Sequence[Span] = ()
        self.heard_s = time.perf_counter()
        self.has_verdict = False  # not yet, or it only asked who drafts here
        self._first: int | None = None  # span after the verdict that is not answered yet

    def send(self, message: Message) -> None:
        self._channel.send(message)
        if isinstance(message, Subtree) and self._first is not None:
            self._stats.rounds += 1
            self._stats.hits += not any(span.phase in COMPUTING for span in self.spans[self._first :])
            self._stats.answer_s += time.perf_counter() - self.heard_s
            self._first = None

    def poll(self) -> Message | None:
        return self._noted(self._channel.poll())

    def take(self) -> Message | None:
        return self._noted(self._channel.take())

    def _noted(self, message: Message | None) -> Message | None:
        if message is not None:
            self.heard_s = time.perf_counter()
        if isinstance(message, Verdict) and message.tokens:
            self.has_verdict = True
            self._stats.tokens += len(message.tokens)
            self._first = len(self.spans)
        return message
