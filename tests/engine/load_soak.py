"""Many requests at once, and faults: `python -m tests.engine.load_soak --requests 2000`. Exits with 1 if a check fails.

A fifth of the requests is left early, the cache is too small for all that run, and the draft is killed, frozen, or
misunderstood meanwhile. Every output must be what the target says alone, or the beginning of it if the request was
left; launcher and processes must not grow; nothing may be left over.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.engine.requests import Task
from swiftspec.engine.running import RequestEvent
from swiftspec.policies import Layout, Request
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from tests.engine.conftest import start_engine
from tests.engine.pairs import VOCAB_SIZE, references, write_pair
from tests.engine.processes import gone_within, until
from tests.engine.proxy import ProxiedSite
from tests.engine.soak import Faults, size

NEW_TOKENS = 48
LONGEST_PROMPT = 120
NUM_TEXTS = 24
MAX_RUNNING, MAX_OPEN = 8, 12
NUM_BLOCKS = 60  # eight of the longest would need 88
LEFT = 0.2
PATIENCE_S = 0.3
WARM = 0.25  # share of the requests after which nothing may grow any more
MOST_GROWTH_BYTES = 8 << 20
_POLICY = SwiftSpec(verify_rows=6, expand_rows=3, num_candidates=3, tree_capacity=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSoaked:
    """Outcome.

    Parameters
    ----------
    wrong : tuple of str
        Requests whose output was not the target's.
    left, preemptions, losses, restarts : int
    growth_bytes, files : dict
        Resident memory and descriptors gained, of the launcher and the target.
    threads : int
        Threads gained by the launcher.
    is_idle : bool
        Whether every process had finished every request in the end.
    orphans : bool
    """

    wrong: tuple[str, ...]
    left: int
    preemptions: int
    losses: int
    restarts: int
    growth_bytes: dict[str, int]
    files: dict[str, int]
    threads: int
    is_idle: bool
    orphans: bool
    seconds: float

    @property
    def is_clean(self) -> bool:
        grows = max(self.growth_bytes.values()) > MOST_GROWTH_BYTES or max(self.files.values()) > 0 or self.threads > 0
        return self.is_idle and not (self.wrong or self.orphans or grows)


def load_soak(
    directory: Path, *, num_requests: int, num_faults: int, seed: int, report: Callable[[str], None]
) -> LoadSoaked:
    """Run them all."""
    rng, before_s = random.Random(seed), time.monotonic()
    pair = references(write_pair(directory, architecture="llama"), inflate="layers=12,hidden=192")
    texts = [_text(rng, number) for number in range(NUM_TEXTS)]
    with start_engine(pair, Layout.TARGET_ONLY) as engine:
        expected = [
            engine.generate(Autoregressive(), request, request_id="alone", sampler=sampler).tokens
            for request, sampler in texts
        ]
    limits = AdmissionLimits(max_running=MAX_RUNNING, num_blocks=NUM_BLOCKS, tree_rows=_POLICY.target_rows)
    with (
        shared_fork_server() as fork_server,
        (executor := ProxiedSite(directory, fork_server)).proxy,
        start_engine(
            pair,
            Layout.DISAGGREGATED,
            executor=executor,
            admission=limits,
            patience_s=PATIENCE_S,
            max_restarts=10 * num_faults,
        ) as engine,
    ):
        faults = Faults(engine, executor, rng)
        run = _Run(engine, texts, expected, rng)
        processes = {"launcher": os.getpid(), "target": engine.processes[0].pid}
        faulty = set(rng.sample(range(num_requests), num_faults))
        warm = {name: size(pid) for name, pid in processes.items()}
        num_threads = threading.active_count()
        for number in range(num_requests):
            if number in faulty:
                faults.kinds[rng.choice(list(faults.kinds))]()
            if number == int(WARM * num_requests):
                run.drain()
                warm, num_threads = {name: size(pid) for name, pid in processes.items()}, threading.active_count()
            run.submit(number)
            if (number + 1) % 100 == 0:
                report(f"{number + 1} of {num_requests}: {run.summary}")
        run.drain()
        faults.thaw()
        until(lambda: any(process.role is Role.DRAFT for process in engine.processes))
        until(lambda: all(group.is_ready and not group.num_open for group in engine._worker_groups))
        grown = {name: size(pid) for name, pid in processes.items()}
        gained = threading.active_count() - num_threads
        restarts, pids = engine.num_restarts, [process.pid for process in engine.processes]
        is_idle = all(group.is_ready and not group.num_open for group in engine._worker_groups)
    return LoadSoaked(
        wrong=tuple(run.wrong),
        left=run.left,
        preemptions=run.preemptions,
        losses=run.losses,
        restarts=restarts,
        growth_bytes={name: grown[name][0] - warm[name][0] for name in processes},
        files={name: grown[name][1] - warm[name][1] for name in processes},
        threads=gained,
        is_idle=is_idle,
        orphans=not gone_within(pids, 30.0),
        seconds=time.monotonic() - before_s,
    )


def _text(rng: random.Random, number: int) -> tuple[Request, Sampler]:
    prompt = tuple(rng.choices(range(1, VOCAB_SIZE), k=rng.randint(1, LONGEST_PROMPT)))
    request = Request(prompt=prompt, max_new_tokens=NEW_TOKENS, eos_token_ids=frozenset({0}))
    return request, Sampler(temperature=0.8, top_p=0.95, seed=number) if number % 2 else Sampler()


class _Run:
    """Requests under way, at most `MAX_OPEN`, and what became of the others."""

    def __init__(
        self,
        engine: Launcher,
        texts: list[tuple[Request, Sampler]],
        expected: list[tuple[int, ...]],
        rng: random.Random,
    ) -> None:
        self._engine, self._texts, self._expected, self._rng = engine, texts, expected, rng
        self._ends = SimpleQueue[tuple[int, int, list[int], Generation | Exception]]()
        self._open = 0
        self.wrong: list[str] = []
        self.left = self.preemptions = self.losses = 0

    def submit(self, number: int) -> None:
        while self._open >= MAX_OPEN:
            self._take()
        index = self._rng.randrange(len(self._texts))
        request, sampler = self._texts[index]
        streamed: list[int] = []

        def deliver(event: RequestEvent) -> None:
            if isinstance(event, tuple):
                streamed.extend(token for commit in event for token in commit)
            else:
                self._ends.put((number, index, streamed, event))

        task = Task(prompt_id=str(number), request=request)
        running = self._engine.submit(_POLICY, task, sampler=sampler, deliver=deliver)
        self._open += 1
        if self._rng.random() < LEFT:
            timer = threading.Timer(self._rng.uniform(0.0, 0.2), self._engine.cancel, (running,))
            timer.daemon = True
            timer.start()

    def drain(self) -> None:
        """Wait for all that are under way."""
        while self._open:
            self._take()
        until(lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate()))

    def _take(self) -> None:
        number, index, streamed, end = self._ends.get(timeout=120)
        self._open -= 1
        expected = self._expected[index]
        if isinstance(end, Exception):
            self.wrong.append(f"request {number}: {end}")
            return
        self.left += end.interrupted
        self.preemptions += end.preemptions
        self.losses += end.losses
        wanted = expected[: len(end.tokens)] if end.interrupted else expected
        if end.tokens != wanted or tuple(streamed) != end.tokens:
            self.wrong.append(f"request {number}, text {index}")

    @property
    def summary(self) -> str:
        state = f"{self.left} left, {self.preemptions} preemptions, {self.losses} losses"
        return f"{state}, output {self.wrong or 'as expected'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = load_soak(
            Path(folder),
            num_requests=chosen.requests,
            num_faults=chosen.faults,
            seed=chosen.seed,
            report=partial(print, flush=True),
        )
    print(str(result), flush=True)
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
