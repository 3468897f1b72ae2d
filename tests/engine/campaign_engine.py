"""Faults of an engine in this process: it outlives all but the end of its target. See `campaign`."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from swiftspec.engine.launcher import Launcher
from swiftspec.errors import EngineError
from swiftspec.policies import Layout, Request, make_policy
from swiftspec.policies.autoregressive import Autoregressive
from tests.engine.campaign_record import HANG_S, Injector, Record
from tests.engine.commits import taken
from tests.engine.conftest import start_engine
from tests.engine.pairs import VOCAB_SIZE, references, write_pair
from tests.engine.processes import children, engine_processes, gone_within, is_running, num_files
from tests.engine.victims import wait_until_ready

_NEW_TOKENS = 96
_POLICIES = ("swiftspec", "pearl", "amusd", "ssd", "specbranch", "mirror", "minedraft")
_LENGTHS = (1, 8, 37, 120)
_FAULTS_PER_ENGINE = 12
_READY_WITHIN_S = 60.0
_MOST_NEW_FILES = 2
_ENDS_TARGET = frozenset({"kill target", "kill both", "kill target, stop draft"})


class RunningEngine:
    """An engine after another, each with a dozen faults, or as many as its target survives."""

    def __init__(self, directory: Path, scratch: Path, rng: random.Random) -> None:
        self._rng, self._scratch = rng, scratch
        directory.mkdir()
        self._pair = references(write_pair(directory, architecture="llama"), inflate="layers=12,hidden=192")
        self._prompts = [tuple(rng.choices(range(1, VOCAB_SIZE), k=length)) for length in _LENGTHS for _ in range(2)]
        with start_engine(self._pair, Layout.COLOCATED) as engine:
            self._expected = [_generate(engine, "autoregressive", prompt)[0] for prompt in self._prompts]
        self._engine: Launcher | None = None
        self._injector = Injector(self._pids, scratch, rng)
        self._num_faults = 0
        self._files: dict[str, int] = {}

    def _pids(self) -> dict[str, int]:
        own = engine_processes(os.getpid())
        pids = dict.fromkeys(["fork server"], max((pid for pid in children(os.getpid()) if pid in own), default=0))
        if not pids["fork server"]:
            pids.clear()
        if self._engine is not None:
            pids |= {process.role.value: process.pid for process in self._engine.processes}
        elif "fork server" in pids:  # it is starting
            workers = children(pids["fork server"])
            pids |= dict(zip(("target", "draft"), workers, strict=False))
        return pids

    @property
    def _faults(self) -> dict[str, Callable[[], object]]:
        inject = self._injector
        kill, stop, both = signal.SIGKILL, inject.stop, ("target", "draft")
        return {
            "kill draft": lambda: inject.signal(["draft"], kill),
            "stop draft": lambda: stop(["draft"]),
            "tell draft to end": lambda: inject.signal(["draft"], signal.SIGTERM),
            "crash draft": lambda: inject.signal(["draft"], signal.SIGSEGV),
            "kill target": lambda: inject.signal(["target"], kill),
            "stop target": lambda: stop(["target"]),
            "stop both": lambda: stop(both),
            "kill both": lambda: inject.signal(both, kill),
            "kill target, stop draft": lambda: (stop(["draft"]), inject.signal(["target"], kill)),
            "kill fork server": lambda: inject.signal(["fork server"], kill),
            "stop fork server": lambda: stop(["fork server"]),
            "tell fork server to end": lambda: inject.signal(["fork server"], signal.SIGTERM),
            "kill fork server and draft": lambda: inject.signal(["fork server", "draft"], kill),
            "stop fork server, kill draft": lambda: (stop(["fork server"]), inject.signal(["draft"], kill)),
            "stop fork server for good, kill draft": lambda: (
                stop(["fork server"], for_good=True),
                inject.signal(["draft"], kill),
            ),
            "remove sockets": inject.remove_sockets,
            "remove sockets, kill draft": lambda: (inject.remove_sockets(), inject.signal(["draft"], kill)),
            "say nonsense": inject.say_nonsense,
        }

    def suffer(self) -> Record:
        is_over = self._engine is None or self._num_faults >= _FAULTS_PER_ENGINE
        return self._at_start_up() if is_over and self._rng.random() < 0.7 else self._at_request()

    def _open(self) -> Launcher:
        if self._engine is None:
            engine = start_engine(self._pair, Layout.DISAGGREGATED, patience_s=0.2, max_restarts=1000)
            self._engine, self._num_faults = engine, 0
            _generate(engine, "swiftspec", self._prompts[0])
            self._files = {"launcher": num_files(os.getpid()), "target": num_files(engine.processes[0].pid)}
        return self._engine

    def _at_start_up(self) -> Record:
        """While an engine starts; it has to come up, unless its target died."""
        wrong = self._close()
        name = self._rng.choice([name for name in self._faults if "sockets" not in name and "nonsense" not in name])
        after_s = self._rng.uniform(0.2, 4.0)
        timer = threading.Timer(after_s, self._faults[name])
        timer.start()
        ending = "finished"
        try:
            self._open()
        except EngineError as error:
            ending = "target lost"
            if name not in _ENDS_TARGET:
                wrong.append(f"did not start: {error}")
        timer.join()
        self._injector.settle()
        if self._engine is not None:
            ending, more, _, _ = self._request(lambda _: None, may_lose_target=name in _ENDS_TARGET)
            wrong += more
        else:
            wrong += self._left()
        return Record(
            world="engine", fault=name, moment=f"start-up, {after_s:.1f} s", wrong=tuple(wrong), ending=ending
        )

    def _at_request(self) -> Record:
        engine = self._open()
        wait_until_ready(engine, _READY_WITHIN_S)
        self._num_faults += 1
        name = self._rng.choice(list(self._faults))
        after = self._rng.choice((-1, 0, 1, 20, 50, 90))
        pending = [self._faults[name]]
        self._injector.stopped_s = 0.0

        def on_commit(num_tokens: int) -> None:
            if pending and num_tokens >= after >= 0:
                pending.pop()()

        if after < 0:
            pending.pop()()
        ending, wrong, losses, gap_s = self._request(on_commit, may_lose_target=name in _ENDS_TARGET)
        moment = "between requests" if after < 0 else "never: it ended before" if pending else f"at token {after}"
        self._injector.settle()
        if name in _ENDS_TARGET and not pending:  # also one whose last tokens were on their way already
            wrong += self._close(is_whole=False)
        return Record(
            world="engine", fault=name, moment=moment, wrong=tuple(wrong), ending=ending, losses=losses, gap_s=gap_s
        )

    def _request(self, on_commit: Callable[[int], None], *, may_lose_target: bool) -> tuple[str, list[str], int, float]:
        """Ending, what went wrong, losses and the longest gap of one request."""
        assert self._engine is not None
        number = self._rng.randrange(len(self._prompts))
        expected, policy = self._expected[number], self._rng.choice(_POLICIES)
        ending, losses, wrong = "finished", 0, []
        took = _Commits(on_commit)
        try:
            tokens, losses = _generate(self._engine, policy, self._prompts[number], took)
            if tokens != expected:
                wrong.append(f"{policy}: output differs at token {_first_difference(tokens, expected)}")
        except EngineError as error:
            ending = "target lost"
            if error.tokens != expected[: len(error.tokens)]:
                wrong.append(f"{policy}: output differs at token {_first_difference(error.tokens, expected)}")
            if not may_lose_target:
                wrong.append(f"{policy}: {error}")
            wrong += self._close(is_whole=False)
        gap_s = took.longest_gap_s()
        if gap_s - self._injector.stopped_s > HANG_S:
            wrong.append(f"{policy}: {gap_s:.1f} s without a token")
        return ending, wrong, losses, gap_s

    def _close(self, *, is_whole: bool = True) -> list[str]:
        """End the engine, and return what it left behind."""
        if self._engine is None:
            return []
        wrong = []
        if is_whole:
            wait_until_ready(self._engine, _READY_WITHIN_S)
            now = {"launcher": num_files(os.getpid()), "target": num_files(self._engine.processes[0].pid)}
            for name, before in self._files.items():
                if now[name] > before + _MOST_NEW_FILES:
                    wrong.append(f"{name} has {now[name]} file descriptors; it had {before}")
        before_s = time.monotonic()
        self._engine.close()
        if (took_s := time.monotonic() - before_s) > HANG_S:
            wrong.append(f"closing took {took_s:.1f} s")
        self._engine = None
        return wrong + self._left()

    def _left(self) -> list[str]:
        mine = engine_processes(os.getpid())
        left = [] if gone_within(mine, 2.0) else [f"left running: {[pid for pid in mine if is_running(pid)]}"]
        return left + [f"left: {path}" for path in self._scratch.glob("swiftspec-*")]

    def close(self) -> list[Record]:
        wrong = self._close()
        return [Record(world="engine", fault="none", moment="end", wrong=tuple(wrong), ending="closed")]


class _Commits:
    """Counts tokens, and watches the time between them."""

    def __init__(self, on_commit: Callable[[int], None]) -> None:
        self._on_commit = on_commit
        self._num_tokens = 0
        self._times_s = [time.monotonic()]

    def __call__(self, tokens: tuple[int, ...]) -> None:
        self._times_s.append(time.monotonic())
        self._num_tokens += len(tokens)
        self._on_commit(self._num_tokens)

    def longest_gap_s(self) -> float:
        """Up to now, when the request has ended."""
        times_s = [*self._times_s, time.monotonic()]
        return max(after - before for before, after in pairwise(times_s))


def _generate(
    engine: Launcher, name: str, prompt: tuple[int, ...], take: Callable[[tuple[int, ...]], None] = lambda _: None
) -> tuple[tuple[int, ...], int]:
    policy = Autoregressive() if name == "autoregressive" else make_policy(name)
    request = Request(prompt=prompt, max_new_tokens=_NEW_TOKENS, eos_token_ids=frozenset({0}))
    generation = taken(engine, policy, request, take, name="campaign")
    return generation.tokens, generation.losses


def _first_difference(tokens: tuple[int, ...], expected: tuple[int, ...]) -> int:
    pairs = enumerate(zip(tokens, expected, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(tokens), len(expected)))
