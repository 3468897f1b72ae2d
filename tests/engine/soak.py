"""Many prompts, a fault in each: `python -m tests.engine.soak --prompts 200 --seed 0`. Exits with 1 unless all is well.

Every prompt's output must be the target's own, as another engine decoded it before; the target and the launcher must
not grow; in the end no process is left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.policies import Layout, Policy, Request, make_policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from tests.engine.commits import taken
from tests.engine.conftest import start_engine
from tests.engine.pairs import VOCAB_SIZE, references, write_pair
from tests.engine.processes import gone_within, num_files, resident_bytes
from tests.engine.proxy import ProxiedSite
from tests.engine.victims import once, wait_until_ready

NEW_TOKENS = 96
PATIENCE_S = 0.2
POLICIES = ("swiftspec", "pearl", "amusd", "ssd", "specbranch", "mirror", "minedraft")
LONGEST_PROMPT = 150
WARM_PROMPTS = 20  # until then buffers are made, and Python's own caches filled
MOST_GROWTH_BYTES = 8 << 20
_READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """Outcome of a soak test.

    Parameters
    ----------
    faults : dict
        How many of each kind.
    wrong : tuple of str
        Prompts whose output was not the target's, with the fault.
    losses, restarts : int
    growth_bytes : dict
        Resident memory gained after the first prompts, of the launcher and the target.
    files : dict
        File descriptors gained.
    orphans : bool
    """

    faults: dict[str, int]
    wrong: tuple[str, ...]
    losses: int
    restarts: int
    growth_bytes: dict[str, int]
    files: dict[str, int]
    orphans: bool
    seconds: float

    @property
    def is_clean(self) -> bool:
        grows = max(self.growth_bytes.values()) > MOST_GROWTH_BYTES or max(self.files.values()) > 0
        return not (self.wrong or self.orphans or grows)


def _thaw(pid: int) -> None:
    with suppress(ProcessLookupError):  # another fault has ended it meanwhile
        os.kill(pid, signal.SIGCONT)


class Faults:
    """Each a method that does it, now."""

    def __init__(self, engine: Launcher, executor: ProxiedSite, rng: random.Random) -> None:
        self._engine, self._executor, self._rng = engine, executor, rng
        self._timers: list[threading.Timer] = []

    @property
    def kinds(self) -> dict[str, Callable[[], None]]:
        return {
            "killed": self.kill,
            "frozen": self.freeze,
            "lost": lambda: self._executor.proxy.lose(self._rng.randint(1, 3)),
            "delayed": lambda: self._executor.proxy.delay(self._rng.uniform(0.1, 2.0)),
            "nonsense": lambda: self._executor.proxy.invent(self._nonsense()),
        }

    def draft(self) -> int | None:
        return next((process.pid for process in self._engine.processes if process.role is Role.DRAFT), None)

    def kill(self) -> None:
        if (pid := self.draft()) is not None:
            os.kill(pid, signal.SIGKILL)

    def freeze(self) -> None:
        if (pid := self.draft()) is not None:
            os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(self._rng.uniform(0.05, 1.5), _thaw, (pid,))
            timer.start()
            self._timers.append(timer)

    def thaw(self) -> None:
        for timer in self._timers:
            timer.join()
        self._timers.clear()

    def _nonsense(self) -> list[bytes]:
        return [self._rng.randbytes(self._rng.choice((0, 5, 13, 40, 400))) for _ in range(self._rng.randint(1, 20))]


def soak(directory: Path, *, num_prompts: int, seed: int, report: Callable[[str], None]) -> Soaked:
    """Run them all. The pair is random; its target is slowed down, so that faults fall into the middle."""
    rng = random.Random(seed)
    pair = references(write_pair(directory, architecture="llama"), inflate="layers=12,hidden=192")
    prompts = [tuple(rng.choices(range(1, VOCAB_SIZE), k=rng.randint(1, LONGEST_PROMPT))) for _ in range(num_prompts)]
    with start_engine(pair, Layout.COLOCATED) as engine:
        expected = [_generate(engine, Autoregressive(), prompt, lambda _: None)[0] for prompt in prompts]
    counts: Counter[str] = Counter()
    wrong, losses, before_s = [], 0, time.monotonic()
    with (
        shared_fork_server() as fork_server,
        (executor := ProxiedSite(directory, fork_server)).proxy,
        start_engine(
            pair, Layout.DISAGGREGATED, patience_s=PATIENCE_S, max_restarts=10 * num_prompts, executor=executor
        ) as engine,
    ):
        faults = Faults(engine, executor, rng)
        processes = {"launcher": os.getpid(), "target": engine.processes[0].pid}
        warm: dict[str, tuple[int, int]] = {}
        for number, (prompt, own) in enumerate(zip(prompts, expected, strict=True)):
            kind, after = rng.choice(list(faults.kinds)), rng.choice((0, 0, 1, 20, 50))
            wait_until_ready(engine, _READY_WITHIN_S)
            policy = make_policy(POLICIES[number % len(POLICIES)])
            output, lost = _generate(engine, policy, prompt, once(after, faults.kinds[kind]))
            counts[f"{kind} at {after}"] += 1
            losses += lost
            if output != own:
                wrong.append(f"prompt {number}, {policy.name}, {kind} after {after}")
            if number + 1 == min(WARM_PROMPTS, num_prompts):
                warm = {name: size(pid) for name, pid in processes.items()}
            if (number + 1) % 10 == 0:
                so_far = f"{losses} losses, {engine.num_restarts} restarts, output {wrong or 'as expected'}"
                report(f"{number + 1} of {num_prompts}: {so_far}")
        faults.thaw()
        grown = {name: size(pid) for name, pid in processes.items()}
        restarts = engine.num_restarts
        pids = [process.pid for process in engine.processes]
    return Soaked(
        faults=dict(counts),
        wrong=tuple(wrong),
        losses=losses,
        restarts=restarts,
        growth_bytes={name: grown[name][0] - warm[name][0] for name in processes},
        files={name: grown[name][1] - warm[name][1] for name in processes},
        orphans=not gone_within(pids, 30.0),
        seconds=time.monotonic() - before_s,
    )


def _generate(
    engine: Launcher, policy: Policy, prompt: tuple[int, ...], on_commit: Callable[[int], None]
) -> tuple[tuple[int, ...], int]:
    """The output as it was streamed, and how often the draft was lost."""
    streamed: list[int] = []

    def take(tokens: tuple[int, ...]) -> None:
        streamed.extend(tokens)
        on_commit(len(streamed))

    on_commit(0)
    request = Request(prompt=prompt, max_new_tokens=NEW_TOKENS, eos_token_ids=frozenset({0}))
    generation = taken(engine, policy, request, take, name="soak")
    assert tuple(streamed) == generation.tokens, "what was streamed is what was generated"
    return generation.tokens, generation.losses


def size(pid: int) -> tuple[int, int]:
    """Resident bytes, and open file descriptors."""
    return resident_bytes(pid), num_files(pid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), num_prompts=options.prompts, seed=options.seed, report=partial(print, flush=True))
    print(str(result), flush=True)
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
