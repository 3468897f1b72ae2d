"""Autoregressive decoding: one target forward of one row per token. The baseline that every speed-up refers to."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import TargetOnly
from swiftspec.policies.effects import Commit, KeepKV, Prefill, Program, Role, Row, TargetForward
from swiftspec.policies.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoregressive(TargetOnly):
    """Decoding without a draft. No token is ever discarded."""

    name: ClassVar[str] = "autoregressive"
    plain: ClassVar[bool] = True
    elastic: ClassVar[bool] = True
    target_rows: ClassVar[int] = 1

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: _decode(request)}

    @classmethod
    def search_space(cls) -> Iterator["Autoregressive"]:
        yield cls()


def _decode(request: Request) -> Program:
    token: int = yield Prefill(Role.TARGET, request.prompt)
    for num_generated in range(request.max_new_tokens):
        tokens, finished = request.clip((token,), num_generated=num_generated)
        yield Commit(tokens)
        if finished:
            return
        position = len(request.prompt) + num_generated
        (token,) = yield from TargetForward((Row(token, position, 0),))
        yield KeepKV(Role.TARGET, (0,), 1)
