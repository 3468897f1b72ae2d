"""Check tenants on this machine: `python -m tools.check_tenants --tenants DIR DIR`.

Two fine-tunes of the bundled target (`python -m tools.train_tenants` makes them), served by one engine and by an engine
each. On a quiet machine with two cores. Exit code 1 if a criterion is missed:

- memory: a process with the tenants takes at most 5 % more than the target with the weights that the tenants do not
  share;
- outputs: every tenant's text is that of an engine of its own;
- speed: with clients of both tenants, one engine has 1.5 times the tokens/s of two engines on the same cores. Two
  engines share both cores, or have one each; the faster way counts. They take turns with the one engine.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from swiftspec.cli import console
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.requests import RequestOptions
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits

__all__ = ["main"]

_MOST_GROWTH, _TIMES_FASTER = 1.05, 1.5
_MAX_CONTEXT = 512
_SETTLING_S = 1.0
_NUM_TOKENS = 400  # of a request in the closed loops
_PROMPTS = tuple(tuple((7 * number + 3 * place) % 4000 + 1 for place in range(24)) for number in range(16))
_TWO_CORES = (0, 1)


@dataclass(frozen=True)
class _Engine:
    """An engine to start: its model, tenants and cores."""

    model: str
    inflate: str
    tenants: tuple[str, ...]
    cores: tuple[int, ...]
    max_running: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", nargs=2, required=True, metavar="DIR", help="two fine-tunes of the target")
    parser.add_argument("--target", default="demo/target")
    parser.add_argument("--inflate", default="layers=48", help="default: layers=48")
    parser.add_argument("--clients", default="1,2,4", help="of each tenant (default: 1,2,4)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn (default: 6)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--only", choices=("memory", "outputs", "speed"))
    chosen = parser.parse_args(arguments)
    tenants = tuple(str(Path(each).absolute()) for each in chosen.tenants)
    checks = {"memory": _check_memory, "outputs": _check_outputs, "speed": _check_speed}
    held = [check(chosen, tenants) for name, check in checks.items() if chosen.only in (None, name)]
    return 0 if all(held) else 1


def _check_memory(chosen: argparse.Namespace, tenants: tuple[str, ...]) -> bool:
    rows, sizes = [], []
    for count in range(len(tenants) + 1):
        with _started(_Engine(chosen.target, chosen.inflate, tenants[:count], _TWO_CORES, 1)) as engine:
            size, private = engine.ask("memory")
        sizes.append((size, private))
        rows.append([str(count), f"{private / 1e6:.1f}", f"{size / 1e6:.1f}"])
    console.table("Memory", ["tenants", "own weights, MB", "process, MB"], rows)
    (least, _), (most, private) = sizes[0], sizes[-1]
    console.say(f"grown by {(most - least) / 1e6:.1f} MB, of which {private / 1e6:.1f} MB are the tenants' weights\n")
    return bool(most <= _MOST_GROWTH * (least + private))


def _check_outputs(chosen: argparse.Namespace, tenants: tuple[str, ...]) -> bool:
    with _started(_Engine(chosen.target, chosen.inflate, tenants, _TWO_CORES, 8)) as engine:
        together = engine.ask("texts", (1, 2))
    own = []
    for tenant in tenants:
        with _started(_Engine(tenant, chosen.inflate, (), _TWO_CORES, 8)) as engine:
            own += engine.ask("texts", (0,))
    same = bool(together == own)
    console.say(f"{len(own)} texts of both tenants, all at once: {'the same' if same else 'NOT the same'} as alone\n")
    return same and own[0] != own[len(_PROMPTS)]


def _check_speed(chosen: argparse.Namespace, tenants: tuple[str, ...]) -> bool:
    rows, best = [], 0.0
    for clients in map(int, chosen.clients.split(",")):
        one = [_Engine(chosen.target, chosen.inflate, tenants, _TWO_CORES, 2 * clients)]
        ways: Mapping[str, Sequence[_Engine]] = {
            "one": one,
            "both cores": [_Engine(tenant, chosen.inflate, (), _TWO_CORES, clients) for tenant in tenants],
            "a core each": [
                _Engine(tenant, chosen.inflate, (), (core,), clients) for core, tenant in enumerate(tenants)
            ],
        }
        turns: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(chosen.repeats):
            for way, engines in ways.items():
                turns[way].append(_tokens_per_s(engines, clients, chosen.seconds))
        times = [
            shared / max(*others)
            for shared, *others in zip(turns["one"], turns["both cores"], turns["a core each"], strict=True)
        ]
        best = max(best, median(times))
        rows.append(
            [str(clients), *(f"{median(turns[way]):.0f}" for way in ways), f"{median(times):.2f}"],
        )
    console.table(
        "Tokens/s of both tenants, plain decoding",
        ["clients of each", "one engine", "two, both cores", "two, a core each", "times"],
        rows,
        remarks=["times: one engine over the faster two"],
    )
    return best >= _TIMES_FASTER


def _tokens_per_s(engines: Sequence[_Engine], clients: int, seconds: float) -> float:
    """Of all engines together, each of which has the clients of its tenants at the same time."""
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(len(engines)))
        running = [stack.enter_context(_started(engine)) for engine in engines]
        asked = [
            threads.submit(each.ask, "speed", (clients, seconds, (1, 2) if engine.tenants else (0,)))
            for each, engine in zip(running, engines, strict=True)
        ]
        return float(sum(each.result() for each in asked))


class _Running:
    """An engine in a process of its own, on some cores, and questions to it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ask(self, what: str, argument: Any = None) -> Any:
        self._pipe.send((what, argument))
        return self._pipe.recv()


@contextmanager
def _started(engine: _Engine) -> Iterator[_Running]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(engine, theirs))
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield _Running(ours)
    finally:
        ours.close()
        process.join()


def _serve(engine: _Engine, pipe: Connection) -> None:
    os.sched_setaffinity(0, engine.cores)
    with Launcher(
        {Role.TARGET: ModelRef(model=engine.model, inflate=engine.inflate, dtype="float32")},
        Placement(groups={Role.TARGET: tuple(range(len(engine.cores)))}),
        layout=Layout.TARGET_ONLY,
        max_context=_MAX_CONTEXT,
        admission=AdmissionLimits(max_running=engine.max_running),
        tenants=engine.tenants,
    ) as launcher:
        answers = {"memory": _memory, "texts": _texts, "speed": _speed}
        pipe.send("ready")
        while True:
            try:
                what, argument = pipe.recv()
            except EOFError:
                return
            pipe.send(answers[what](launcher, argument))


def _memory(launcher: Launcher, _: object) -> tuple[int, int]:
    """Bytes that the process holds for itself, and those of its tenants' own weights."""
    (process,) = launcher.processes
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return private, sum(process.tenant_bytes)


def _texts(launcher: Launcher, tenants: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Tokens of every prompt and tenant, all at once."""
    asked = [(prompt, tenant) for tenant in tenants for prompt in _PROMPTS]
    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(lambda each: _decode(launcher, each[0], each[1], num_tokens=48), asked))


def _speed(launcher: Launcher, argument: tuple[int, float, tuple[int, ...]]) -> float:
    """Tokens/s of a closed loop of some clients of each tenant, after a moment."""
    clients, seconds, tenants = argument
    counted, is_over = [0], threading.Event()
    start_s = time.monotonic() + _SETTLING_S

    def note(tokens: tuple[int, ...]) -> None:
        if start_s <= time.monotonic() < start_s + seconds:
            counted[0] += len(tokens)

    def client(number: int) -> None:
        while not is_over.is_set():
            prompt, tenant = _PROMPTS[number % len(_PROMPTS)], tenants[number % len(tenants)]
            _decode(launcher, prompt, tenant, num_tokens=_NUM_TOKENS, note=note, is_over=is_over)

    num_clients = clients * len(tenants)
    with ThreadPoolExecutor(num_clients) as threads:
        running = [threads.submit(client, number) for number in range(num_clients)]
        time.sleep(_SETTLING_S + seconds)
        is_over.set()
        for each in running:
            each.result()
    return counted[0] / seconds


def _decode(
    launcher: Launcher,
    prompt: tuple[int, ...],
    tenant: int,
    *,
    num_tokens: int,
    note: Callable[[tuple[int, ...]], None] = lambda _: None,
    is_over: threading.Event | None = None,
) -> tuple[int, ...]:
    stream = launcher.stream(
        make_policy("autoregressive"),
        Request(prompt=prompt, max_new_tokens=num_tokens),
        request_id="",
        sampler=Sampler(),
        options=RequestOptions(tenant=tenant),
        interrupted=is_over,
    )
    try:
        while True:
            note(next(stream))
    except StopIteration as ended:
        generation: Generation = ended.value
        return generation.tokens


if __name__ == "__main__":
    sys.exit(main())
