"""Programs of all requests on one device group: where each of them stands, and what they ask for.

Sans-IO: a driver, of the simulator or of the engine, performs what programs yield, and says what came of it. Its loop:

    resume every program that can go on, and perform the effects that are no forwards
    choose a step;  compute it;  give every program in it its answer
    if there is none: wait for a message, a request, or the time that was asked for
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from swiftspec.policies.effects import (
    Commit,
    DraftForward,
    Effect,
    Forward,
    KeepKV,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    TargetExit,
    TargetFinish,
    TargetForward,
)
from swiftspec.scheduler.asks import Ask, Grant, Step, ask_of
from swiftspec.scheduler.batching import BatchLimits, WaitUntil, choose
from swiftspec.scheduler.controller import Controller


@dataclass(slots=True, kw_only=True)
class _RunningRequest:
    """A request's program, and the effect that it waits for."""

    program: Program
    is_elastic: bool
    effect: Forward | None = None
    ask: Ask | None = None  # what is left of that effect
    num_prefilled: int = 0  # tokens of the prefill that it waits for
    num_halfway: int = 0  # rows of its last exit


class Group:
    """The programs of one role on one device group.

    controller: decides how much is drafted and verified; all that programs ask for, if not given.
    """

    def __init__(self, limits: BatchLimits, controller: Controller | None = None) -> None:
        self._limits = limits
        self._controller = controller
        self._running: dict[int, _RunningRequest] = {}  # in the order of admission
        self._ready: deque[tuple[int, Any]] = deque()  # requests that can go on, and their answers
        self._asking: dict[int, _RunningRequest] = {}
        self._receiving: dict[int, Receive] = {}
        self._rows_asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, request: int) -> bool:
        return request in self._running

    def add(self, request: int, program: Program, *, is_elastic: bool, tpot_s: float | None = None) -> None:
        """Begin a request's program. tpot_s: its limit on the time per token."""
        self._running[request] = _RunningRequest(program=program, is_elastic=is_elastic)
        self._ready.append((request, None))
        if self._controller and is_elastic:
            self._controller.add(request, tpot_s=tpot_s)

    def remove(self, request: int) -> None:
        """End a request's program wherever it stands; nothing happens if it has ended."""
        running = self._running.pop(request, None)
        if running is not None:
            self._forget(request)
            self._asking.pop(request, None)
            self._receiving.pop(request, None)
            self._ready = deque(entry for entry in self._ready if entry[0] != request)
            running.program.close()  # last, since it may raise

    @property
    def has_ready(self) -> bool:
        """Whether a program can go on."""
        return bool(self._ready)

    def ready(self) -> Iterator[tuple[int, Any]]:
        """Requests whose programs can go on and the answers they are to be resumed with, until there are no more."""
        while self._ready:
            yield self._ready.popleft()

    def resume(self, request: int, answer: Any, *, now_s: float) -> Effect | None:
        """Give a program its answer: the effect to perform next, after which it is resumed again.

        None if it now asks for a forward, or has ended. For a `Receive` that finds no message: `block`.
        """
        running = self._running[request]
        try:
            effect = running.program.send(answer)
            if self._controller and running.is_elastic and type(effect) is not TargetForward:
                effect = self._controlled(request, running.program, effect, self._controller, now_s)
        except StopIteration:
            del self._running[request]
            self._forget(request)
            return None
        # An asynchronous draft polls before every forward; `isinstance` of a union takes longer.
        if type(effect) is Poll or not isinstance(effect, Forward):
            return effect
        running.effect, running.num_prefilled = effect, 0
        running.ask = ask = ask_of(
            request, effect, num_halfway=running.num_halfway, is_elastic=running.is_elastic, since_s=now_s
        )
        if not ask.num_rows:
            raise ValueError(f"request {request} asks for a forward of no rows")
        if isinstance(effect, TargetExit):
            running.num_halfway = ask.num_rows
        elif isinstance(effect, TargetForward | TargetFinish):
            self._rows_asked[request] += ask.num_rows
        self._asking[request] = running
        return None

    def _controlled(
        self, request: int, program: Program, effect: Effect, controller: Controller, now_s: float
    ) -> Effect:
        """A program's next effect, after what the controller declines; it learns what was accepted."""
        while isinstance(effect, (DraftForward, Prefill)) and effect.level:
            if controller.may_draft(request, effect.level, now_s):
                break
            effect = program.send(())
        if isinstance(effect, Prefill) and effect.role is Role.TARGET:
            controller.note_read(request, effect.position + len(effect.tokens))
        elif isinstance(effect, Commit):
            controller.note_commit(request, len(effect.tokens), now_s)
        elif isinstance(effect, KeepKV) and effect.role is Role.TARGET and effect.num_verified:
            controller.note_accepted(request, effect.slots)
        return effect

    def _forget(self, request: int) -> None:
        if self._controller:
            self._controller.remove(request)

    def take_rows_asked(self, request: int) -> int:
        """Rows that a request's verifications asked for, so far; they are forgotten."""
        return self._rows_asked.pop(request, 0)

    def block(self, request: int, effect: Receive) -> None:
        """Leave a program until `unblock`: there is no message yet."""
        self._receiving[request] = effect

    def unblock(self, request: int, answer: Any) -> None:
        """Let a program go on that waits for a message."""
        del self._receiving[request]
        self._ready.append((request, answer))

    @property
    def receiving(self) -> Mapping[int, Receive]:
        """What the requests that wait for a message wait for."""
        return self._receiving

    def choose(self, now_s: float) -> Step | WaitUntil | None:
        """The next step, as `batching.choose`."""
        if not self._asking:
            return None
        asks = [running.ask for running in self._running.values() if running.ask is not None]
        share = partial(self._controller.shares, now_s=now_s) if self._controller else None
        return choose(asks, limits=self._limits, num_running=len(self._running), now_s=now_s, share=share)

    def begin(self, step: Step, *, now_s: float) -> list[tuple[int, Forward]]:
        """The forwards of a step, by request, with the rows that were granted; the others are overtaken."""
        if self._controller and step.model is Role.TARGET:
            asks = ((self._asking[grant.request].ask, grant.num_rows) for grant in step.grants)
            verified = [(ask, num_rows) for ask, num_rows in asks if ask is not None and ask.is_elastic]
            if verified:
                self._controller.note_step(verified, now_s)
        granted = {grant.request for grant in step.grants}
        for request, running in self._asking.items():
            if request not in granted:
                assert running.ask is not None
                running.ask = running.ask._replace(num_overtaken=running.ask.num_overtaken + 1)
        return [(grant.request, self._part(grant)) for grant in step.grants]

    def _part(self, grant: Grant) -> Forward:
        running = self._asking[grant.request]
        effect = running.effect
        if isinstance(effect, Prefill):
            return effect.part(running.num_prefilled, grant.num_rows)
        if isinstance(effect, TargetForward) and grant.num_rows < len(effect.rows):
            return replace(effect, rows=effect.rows[: grant.num_rows])
        assert effect is not None
        return effect

    def finish(self, step: Step, answers: Mapping[int, Any]) -> None:
        """Answer the programs of a step. A prefill is answered after its last chunk."""
        for request, num_rows in step.grants:
            running = self._asking.get(request)
            if running is None:  # it was removed meanwhile
                continue
            if isinstance(running.effect, Prefill):
                running.num_prefilled += num_rows
                if num_left := len(running.effect.tokens) - running.num_prefilled:
                    assert running.ask is not None
                    running.ask = running.ask._replace(num_rows=num_left)
                    continue
            del self._asking[request]
            running.effect = running.ask = None
            self._ready.append((request, answers[request]))
