"""Requests of an engine during which faults happen, and the checks of the tests of faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.policies import Policy, Request
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.effects import Role
from tests.engine.commits import taken

PATIENCE_S = 0.3
LONG = Request(prompt=tuple(range(1, 60)), max_new_tokens=180)


def generate(engine: Launcher, policy: Policy, on_commit: Callable[[int], None] = lambda _: None) -> Generation:
    num_tokens = 0

    def count(tokens: tuple[int, ...]) -> None:
        nonlocal num_tokens
        num_tokens += len(tokens)
        on_commit(num_tokens)

    return taken(engine, policy, LONG, count, name="test")


def pid_of(engine: Launcher, role: Role, rank: int = 0) -> int:
    return next(process.pid for process in engine.processes if (process.role, process.rank) == (role, rank))


def once(after: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Act once a given number of tokens has been committed."""
    pending = [act]

    def on_commit(num_tokens: int) -> None:
        if num_tokens >= after and pending:
            pending.pop()()

    return on_commit


def wait_until_ready(engine: Launcher, seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not any(process.role is Role.DRAFT for process in engine.processes):
        time.sleep(0.02)
        assert time.monotonic() < deadline_s, "the draft does not come back"


def longest_gap_s(engine: Launcher, at: Callable[[int], None]) -> tuple[Generation, float]:
    """A request, and the longest time without a token of it."""
    times_s = [time.monotonic()]

    def note(num_tokens: int) -> None:
        times_s.append(time.monotonic())
        at(num_tokens)

    generation = generate(engine, SwiftSpec(), note)
    return generation, max(after - before for before, after in pairwise([*times_s, time.monotonic()]))
