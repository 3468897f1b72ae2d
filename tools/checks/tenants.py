"""Tenants of one engine against an engine each.

On a quiet machine with two cores. Two fine-tunes of the bundled target (`python -m tools.train_tenants` makes them),
served by one engine and by an engine each. Criteria:

- memory: a process with the tenants takes at most 5 % more than the target with the weights that the tenants do not
  share;
- outputs: every tenant's text is that of an engine of its own, and the tenants' texts differ;
- speed: with clients of both tenants, one engine has 1.5 times the tokens/s of two engines on the same cores. Two
  engines share both cores, or have one each; the faster way counts. They take turns with the one engine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, get_args

from swiftspec.cli import console
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.requests import Task
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from tools.checks.criterion import Criterion, at_least, at_most

Part = Literal["memory", "outputs", "speed"]

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

    @property
    def alone(self) -> list[_Engine]:
        """An engine for each tenant, as its model."""
        return [replace(self, model=tenant, tenants=()) for tenant in self.tenants]


def check(
    tenants: Annotated[tuple[Path, ...], "folders of the fine-tunes, with a comma"],
    target: str = "demo/target",
    inflate: str = "layers=48",
    clients: Annotated[tuple[int, ...], "of each tenant"] = (1, 2, 4),
    seconds: Annotated[float, "of a turn"] = 6.0,
    repeats: Annotated[int, "turns"] = 3,
    only: tuple[Part, ...] = get_args(Part),
) -> Iterator[Criterion]:
    """Serve both tenants in every way."""
    if len(tenants) != 2:
        raise ValueError(f"--tenants is {','.join(map(str, tenants))!r}; expected two folders")
    engine = _Engine(target, inflate, tuple(str(each.absolute()) for each in tenants), _TWO_CORES, 8)
    if "memory" in only:
        yield _memory_use(engine)
    if "outputs" in only:
        yield from _outputs(engine)
    if "speed" in only:
        yield _gain(engine, clients, seconds, num_turns=repeats)


def _memory_use(shared: _Engine) -> Criterion:
    rows, sizes = [], []
    for count in range(len(shared.tenants) + 1):
        with _started(replace(shared, tenants=shared.tenants[:count], max_running=1)) as engine:
            size, private = engine.ask("memory")
        sizes.append((size, private))
        rows.append([str(count), f"{private / 1e6:.1f}", f"{size / 1e6:.1f}"])
    console.table("Memory", ["tenants", "own weights, MB", "process, MB"], rows)
    (least, _), (most, private) = sizes[0], sizes[-1]
    return at_most("memory over that of the target and the tenants' weights", most / (least + private), _MOST_GROWTH)


def _outputs(shared: _Engine) -> Iterator[Criterion]:
    with _started(shared) as engine:
        together = engine.ask("texts", (1, 2))
    alone = []
    for own in shared.alone:
        with _started(own) as engine:
            alone += engine.ask("texts", (0,))
    yield at_most("texts that differ from those of an engine of their own", _num_different(together, alone), 0)
    first, second = alone[: len(_PROMPTS)], alone[len(_PROMPTS) :]
    yield at_least("prompts whose texts differ between the tenants", _num_different(first, second), 1)


def _num_different(some: Sequence[object], others: Sequence[object]) -> int:
    return sum(one != other for one, other in zip(some, others, strict=True))


def _gain(shared: _Engine, clients: Sequence[int], seconds: float, *, num_turns: int) -> Criterion:
    rows, gains = [], []
    for number in clients:
        alone = [replace(each, max_running=number) for each in shared.alone]
        ways: Mapping[str, Sequence[_Engine]] = {
            "one engine": [replace(shared, max_running=2 * number)],
            "two, both cores": alone,
            "two, a core each": [replace(each, cores=(core,)) for core, each in enumerate(alone)],
        }
        turns: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(num_turns):
            for way, engines in ways.items():
                turns[way].append(_tokens_per_s(engines, number, seconds))
        times = median(one / max(others) for one, *others in zip(*turns.values(), strict=True))
        gains.append(times)
        rows.append([str(number), *(f"{median(each):.0f}" for each in turns.values()), f"{times:.2f}"])
    console.table(
        "Tokens/s of both tenants, plain decoding; times: one engine over the faster two",
        ["clients of each", *ways, "times"],
        rows,
    )
    return at_least("tokens/s of one engine over two, at the best number of clients", max(gains), _TIMES_FASTER)


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
    task = Task(prompt_id="", request=Request(prompt=prompt, max_new_tokens=num_tokens), tenant=tenant)
    stream = launcher.stream(make_policy("autoregressive"), task, sampler=Sampler(), interrupted=is_over)
    try:
        while True:
            note(next(stream))
    except StopIteration as ended:
        generation: Generation = ended.value
        return generation.tokens
