"""The engine's driver of a device group: runs the programs of all requests, a step of the scheduler at a time.

An error that one request causes, by its program, its part or its rows, ends that request, and no other one.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from swiftspec.engine.driver.request_part import Form, RequestPart
from swiftspec.engine.model.forward_batch import BatchResult, DeviceError, ForwardBatch, Model
from swiftspec.policies.effects import Message, Program, Receive, Role
from swiftspec.scheduler.asks import Step
from swiftspec.scheduler.batching import BatchLimits, WaitUntil
from swiftspec.scheduler.controller import Controller
from swiftspec.scheduler.group import Group
from swiftspec.timing.timeline import Span

_MOST_ENDED = 64  # requests between collections; what each leaves behind are cycles, of some 100 kB
# Takes the number of a request whose program has ended, its spans, the rows that it asked to verify, and the error that
# ended it, if one did.
Ended = Callable[[int, list[Span], int, Exception | None], None]


class Inbox(Protocol):
    """Everything that may come to a device group."""

    def pump(self) -> None:
        """Read the messages that have come from peers."""

    def wait(self, until_s: float | None) -> None:
        """Wait for a message, a command, or a time of `time.perf_counter`."""


class GroupDriver:
    """The programs of one role on one device group. controller: see `Group`."""

    def __init__(
        self,
        *,
        models: Mapping[Role, Model],
        limits: BatchLimits,
        inbox: Inbox,
        ended: Ended,
        controller: Controller | None = None,
    ) -> None:
        self._models = models
        self._group = Group(limits, controller)
        self._inbox = inbox
        self._ended = ended
        self._parts: dict[int, RequestPart] = {}
        self._waiting_since_s: dict[int, float] = {}
        self._num_ended = 0  # since the last collection of garbage

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
            self._break_off(request)

    def advance(self) -> None:
        group = self._group
        if group.receiving:
            self._inbox.pump()
            self._take_messages()
        while group.has_ready:
            for request, answer in group.ready():
                with self._failing_alone(request):
                    self._proceed(request, answer)
            # A program that polls for its message reads those of all others, too: nothing would tell of them again.
            self._take_messages()

    def step(self) -> None:
        choice = self._group.choose(time.perf_counter())
        if isinstance(choice, Step):
            self._compute(choice)
        elif self._parts:
            self._wait(choice)

    def _take_messages(self) -> None:
        """Let the programs go on whose message has been read, or whose time is over."""
        receiving = self._group.receiving
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

    def collect_garbage(self, *, is_idle: bool) -> None:
        """Collect what requests left behind where no round waits, and after many of them even if one does.

        The process' own collector is off: it makes a round longer.
        """
        if is_idle or self._num_ended >= _MOST_ENDED:
            gc.collect()
            self._num_ended = 0

    def _end(self, request: int, error: Exception | None = None) -> None:
        self._num_ended += 1
        self._waiting_since_s.pop(request, None)
        self._ended(request, self._parts.pop(request).spans, self._group.take_rows_asked(request), error)

    def _break_off(self, request: int, error: Exception | None = None) -> None:
        try:
            self._group.remove(request)
        except Exception as closing:  # noqa: BLE001 - a program may raise while it is closed, too
            error = error or closing
        self._parts[request].drop_unfinished_round()
        self._end(request, error)

    @contextmanager
    def _failing_alone(self, request: int) -> Iterator[None]:
        """An error inside the context ends this request, and no other one."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a program may be anybody's, and raise anything
            self._break_off(request, error)

    def _compute(self, step: Step) -> None:
        start_s = time.perf_counter()
        forms: dict[int, Form] = {}
        for request, effect in self._group.begin(step, now_s=start_s):
            with self._failing_alone(request):
                forms[request] = self._parts[request].form(effect)
        result = self._forward(step, forms)
        answers: dict[int, Any] = {}
        for index, (request, form) in enumerate(forms.items()):
            with self._failing_alone(request):
                answers[request] = self._parts[request].answer(form, result, index)
        end_s = time.perf_counter()
        for request in answers:
            self._parts[request].note_forward(forms[request], start_s, end_s)
        self._group.finish(step, answers)

    def _forward(self, step: Step, forms: dict[int, Form]) -> BatchResult:
        """Compute the forms of a step. Requests whose rows the model refuses are ended, and their forms taken out."""
        model = self._models[step.model]
        while forms:
            top_k = max(form.num_candidates for form in forms.values())
            try:
                return model.forward(ForwardBatch(step.kind, tuple(form.entry for form in forms.values()), top_k))
            except DeviceError:
                raise  # it computes nothing any more, for nobody
            except Exception as error:  # noqa: BLE001 - it ends the requests whose rows caused it
                # A forward that broke off may have changed the caches of all, unless it refused an entry at once.
                faults = _refused(model, step, forms) or dict.fromkeys(forms, error)
                for request, fault in faults.items():
                    del forms[request]
                    self._break_off(request, fault)
        return BatchResult(())

    def _wait(self, choice: WaitUntil | None) -> None:
        ends_s = [
            self._waiting_since_s[request] + effect.within_s
            for request, effect in self._group.receiving.items()
            if effect.within_s is not None
        ]
        if choice is not None:
            ends_s.append(choice.time_s)
        self._inbox.wait(min(ends_s, default=None))


def _refused(model: Model, step: Step, forms: Mapping[int, Form]) -> dict[int, Exception]:
    refused: dict[int, Exception] = {}
    for request, form in forms.items():
        try:
            model.check(ForwardBatch(step.kind, (form.entry,)))
        except ValueError as error:
            refused[request] = error
    return refused
