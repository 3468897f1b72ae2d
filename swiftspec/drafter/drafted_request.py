"""A request of another engine as a disaggregated policy's target: its program runs here, its forwards in the engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from swiftspec.engine.channel.zmq_channel import RequestChannel
from swiftspec.policies.base import Policy, TargetOnly
from swiftspec.policies.effects import (
    Clock,
    Commit,
    KeepKV,
    Poll,
    Program,
    Receive,
    Role,
    Row,
    Send,
    Stop,
    TargetForward,
    prefill,
)
from swiftspec.policies.recovery import served_target
from swiftspec.policies.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain(TargetOnly):
    """Decoding while the draft is away. Even the token after the prompt is a row, at which a draft may join."""

    name: ClassVar[str] = "plain"
    target_rows: ClassVar[int] = 1

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: _decode(request)}


def _decode(request: Request) -> Program:
    yield from prefill(Role.TARGET, request.prompt[:-1])
    root, position = request.prompt[-1], request.root_position
    while True:
        choices = yield from TargetForward((Row(root, position, 0),))
        tokens, finished = request.clip(choices[:1], num_generated=position - request.root_position)
        yield Commit(tokens)
        if finished:
            return
        yield KeepKV(Role.TARGET, (0,), 1)
        root, position = tokens[0], position + 1


class DraftedRequest:
    """One request's target program, with its draft or, when that is late or gone, alone. max_tokens: of its text."""

    def __init__(
        self,
        channel: RequestChannel,
        policy: Policy,
        text: tuple[int, ...],
        *,
        max_tokens: int,
        patience_s: Callable[[], float],
    ) -> None:
        self._channel = channel
        request = Request(prompt=text, max_new_tokens=max(1, max_tokens - len(text)))
        self._target = served_target(policy, request, fallback=_Plain(), patience_s=patience_s)
        self._program = self._target.run()
        self._forward: TargetForward | None = None
        self._receive: Receive | None = None
        self._since_s = 0.0
        self._proceed(None)

    @property
    def num_losses(self) -> int:
        """Number of times that the draft was too late, or broke the protocol."""
        return self._target.num_losses

    @property
    def waits_until_s(self) -> float | None:
        """Time of `time.perf_counter` until which it waits for a message; None if it does not."""
        return None if self._receive is None else self._since_s + (self._receive.within_s or 0.0)

    @property
    def draft(self) -> tuple[int, ...]:
        """The tokens that the engine is to verify next; none if it decodes plainly."""
        return () if self._forward is None else tuple(row.token for row in self._forward.rows[1:])

    def verified(self, tokens: Sequence[int]) -> None:
        """Take what the engine's step gave: the accepted tokens, and the one after them."""
        if self._forward is not None:
            self._forward = None
            self._proceed(tuple(tokens))

    def look(self) -> bool:
        """Whether it goes on: the message that it waits for has been read, or the time for it is over."""
        until_s = self.waits_until_s
        message = None if until_s is None else self._channel.take()
        if until_s is None or (message is None and time.perf_counter() < until_s):
            return False
        self._receive = None
        self._proceed(message)
        return True

    def end(self) -> None:
        """Let the draft forget the request."""
        self._program.close()
        self._channel.send(Stop())

    def _proceed(self, answer: Any) -> None:
        """Run the program until the engine has to compute for it, or it waits for a message."""
        try:
            while True:
                effect = self._program.send(answer)
                answer = None  # the engine reads prompts, keeps KV and commits without being told
                if isinstance(effect, TargetForward):
                    self._forward = effect
                    return
                if isinstance(effect, Send):
                    self._channel.send(effect.message)
                elif isinstance(effect, Clock):
                    answer = time.perf_counter()
                elif isinstance(effect, Poll | Receive):
                    answer = self._channel.poll()
                    if answer is None and isinstance(effect, Receive):
                        self._receive, self._since_s = effect, time.perf_counter()
                        return
        except StopIteration:  # the text is as long as it may become
            return
