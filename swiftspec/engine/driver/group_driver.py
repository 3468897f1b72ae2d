"""The engine's driver of a device group: runs the programs of all requests, a step of the scheduler at a time."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from swiftspec.artifacts.timeline import Span
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.forward_batch import ForwardBatch
from swiftspec.engine.model.protocol import Model
from swiftspec.engine.model.sampler import Sampler
from swiftspec.policies.effects import Message, Program, Receive, Role
from swiftspec.scheduler.asks import Step
from swiftspec.scheduler.batching import BatchLimits, WaitUntil
from swiftspec.scheduler.controller import Controller
from swiftspec.scheduler.group import Group

__all__ = ["GroupDriver", "Inbox", "run_alone"]


class Inbox(Protocol):
    """Everything that may come to a device group."""

    def pump(self) -> None:
        """Read the messages that have come from peers."""

    def wait(self, until_s: float | None) -> None:
        """Wait for a message, a command, or a time of `time.perf_counter`."""


class GroupDriver:
    """The programs of one role on one device group.

    Parameters
    ----------
    models : mapping
        The models of this process, by role.
    limits : BatchLimits
    inbox : Inbox
    ended : callable
        Takes the number of a request whose program has ended, its spans, and the rows that it asked to verify.
    controller : Controller, optional
        As of `Group`.
    """

    def __init__(
        self,
        *,
        models: Mapping[Role, Model],
        limits: BatchLimits,
        inbox: Inbox,
        ended: Callable[[int, list[Span], int], None],
        controller: Controller | None = None,
    ) -> None:
        self._models = models
        self._group = Group(limits, controller)
        self._inbox = inbox
        self._ended = ended
        self._parts: dict[int, RequestPart] = {}
        self._waiting_since_s: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def add(
        self, request: int, program: Program, part: RequestPart, *, is_elastic: bool, tpot_s: float | None = None
    ) -> None:
        """Begin a request's program. tpot_s: its limit on the time per token."""
        self._parts[request] = part
        self._group.add(request, program, is_elastic=is_elastic, tpot_s=tpot_s)

    def remove(self, request: int) -> None:
        """End a request's program wherever it stands; nothing happens if it has ended."""
        if request in self._parts:
            self._group.remove(request)
            self._parts[request].drop_unfinished_round()
            self._end(request)

    def advance(self) -> None:
        """Run every program as far as it goes."""
        group = self._group
        self._take_messages()
        while group.has_ready:
            for request, answer in group.ready():
                self._proceed(request, answer)

    def step(self) -> None:
        """Compute one step, or wait if nothing is asked for."""
        choice = self._group.choose(time.perf_counter())
        if isinstance(choice, Step):
            self._compute(choice)
        elif self._parts:
            self._wait(choice)

    def _take_messages(self) -> None:
        """Let the programs go on whose message has come, or whose time is over."""
        receiving = self._group.receiving
        if not receiving:
            return
        self._inbox.pump()
        now_s = time.perf_counter()
        arrived: list[tuple[int, Message | None]] = []
        for request, effect in receiving.items():
            part, since_s = self._parts[request], self._waiting_since_s[request]
            message = part.peers[effect.peer].take()
            if message is not None or (effect.within_s is not None and now_s >= since_s + effect.within_s):
                part.note_wait(since_s)
                arrived.append((request, message))
        for request, message in arrived:
            self._group.unblock(request, message)

    def _proceed(self, request: int, answer: Any) -> None:
        """A program's effects until it asks for a forward, waits for a message, or ends."""
        part, group = self._parts[request], self._group
        while (effect := group.resume(request, answer, now_s=time.perf_counter())) is not None:
            if not isinstance(effect, Receive):
                answer = part.perform(effect)
                continue
            since_s = time.perf_counter()
            answer = part.peers[effect.peer].poll()
            if answer is None:
                group.block(request, effect)
                self._waiting_since_s[request] = since_s
                return
            part.note_wait(since_s)
        if request not in group:
            self._end(request)

    def note_delivery(self, request: int, end_s: float) -> None:
        """Note when a request's committed tokens had been handed to the launcher."""
        if request in self._parts:
            self._parts[request].note_delivery(end_s)

    def _end(self, request: int) -> None:
        self._waiting_since_s.pop(request, None)
        self._ended(request, self._parts.pop(request).spans, self._group.take_rows_asked(request))

    def _compute(self, step: Step) -> None:
        start_s = time.perf_counter()
        begun = self._group.begin(step, now_s=start_s)
        forms = [(request, self._parts[request].form(effect)) for request, effect in begun]
        entries = tuple(form.entry for _, form in forms)
        top_k = max(form.num_candidates for _, form in forms)
        result = self._models[step.model].forward(ForwardBatch(step.kind, entries, top_k))
        answers = {
            request: self._parts[request].answer(form, result, index) for index, (request, form) in enumerate(forms)
        }
        end_s = time.perf_counter()
        for request, form in forms:
            self._parts[request].note_forward(form, start_s, end_s)
        self._group.finish(step, answers)

    def _wait(self, choice: WaitUntil | None) -> None:
        ends_s = [
            self._waiting_since_s[request] + effect.within_s
            for request, effect in self._group.receiving.items()
            if effect.within_s is not None
        ]
        if choice is not None:
            ends_s.append(choice.time_s)
        self._inbox.wait(min(ends_s, default=None))


class _Empty:
    """Inbox of a program without peers."""

    def pump(self) -> None:
        pass

    def wait(self, until_s: float | None) -> None:
        raise RuntimeError(f"the program waits until {until_s} for a message that nobody will send")


def run_alone(
    program: Program,
    *,
    role: Role = Role.TARGET,
    models: Mapping[Role, Model],
    sampler: Sampler,
    commit: Callable[[tuple[int, ...]], None],
) -> list[Span]:
    """Run a program without peers to its end, in this thread; its spans."""
    part = RequestPart(role=role, models=models, peers=(), commit=commit, sampler=sampler)
    driver = GroupDriver(models=models, limits=BatchLimits(), inbox=_Empty(), ended=lambda *_: None)
    driver.add(0, program, part, is_elastic=False)
    while len(driver):
        driver.advance()
        driver.step()
    return part.spans
