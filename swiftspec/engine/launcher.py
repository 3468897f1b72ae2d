"""The engine from outside: starts a process per role, hands out requests, gathers tokens and timelines, cleans up."""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from threading import Event
from types import TracebackType

from swiftspec.documents import ModelRef
from swiftspec.engine.interrupts import interrupts_held, interrupts_noted
from swiftspec.engine.protocol import Committed, Failed, Finished, Generate, Ready, Setup
from swiftspec.engine.sampling import Sampler
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.timeline import Span, Timeline

__all__ = ["Engine", "Generation", "ProcessInfo"]

TREE_SLOTS = 512  # most tree rows any policy may hold
_DRAIN_EVERY_S = 0.02  # the launcher shares the roles' cores: it looks seldom, not at once
_STOP_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request's output. `interrupted` when Ctrl-C cut it short."""

    tokens: tuple[int, ...]
    timeline: Timeline
    interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process of the engine and the cores it may use."""

    role: Role
    rank: int
    pid: int
    cores: tuple[int, ...]


class _Worker:
    """A started process and the connection to it."""

    def __init__(self, setup: Setup) -> None:
        self.role, self.rank = setup.role, setup.rank
        self.connection, theirs = Pipe()
        threads = str(len(setup.cores))
        # Huge pages for the weights: 1-5 % of a memory-bound forward, measured on one core.
        tuning = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        with interrupts_held():  # inherited: Ctrl-C in a terminal is the launcher's to handle
            self.process = subprocess.Popen(
                [sys.executable, "-m", "swiftspec.engine.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | tuning,
            )
        theirs.close()
        self.connection.send(setup)

    def receive(self) -> object:
        """Its next message. ValueError with its sentence if it failed at what the user gave, else RuntimeError."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            code = self.process.wait()
            raise RuntimeError(f"the {self.role} process ended unexpectedly (exit code {code})") from error
        if isinstance(message, Failed):
            raise (ValueError if message.is_user_error else RuntimeError)(message.sentence)
        return message

    def close(self) -> None:
        """Hang up, and end the process if that does not."""
        self.connection.close()
        try:
            self.process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Engine:
    """Warm processes for one model pair on given devices; a context manager.

    Parameters
    ----------
    target, draft : ModelRef
        `draft` may be None where no policy drafts.
    groups : mapping of Role to device numbers
        Device n is the n-th core this process may use. Disaggregated: disjoint groups of both roles; otherwise the
        target's group alone, for both models.
    layout : Layout
        What the policies to come need; a co-located engine also decodes without its draft.
    target_groups : int
        Equal groups that the target's devices are split into, each with a copy of the target.
    max_context : int
        Prompt and output tokens of the longest request.

    Raises
    ------
    ValueError
        If a model cannot be loaded or a device does not exist; no process is left behind.
    """

    def __init__(
        self,
        *,
        target: ModelRef,
        draft: ModelRef | None,
        groups: Mapping[Role, tuple[int, ...]],
        layout: Layout,
        max_context: int,
        target_groups: int = 1,
    ) -> None:
        self.layout = layout
        self.target_groups = target_groups
        self.max_context = max_context
        self._number = 0
        cores = _cores(groups)
        with ExitStack() as stack:
            models = {Role.TARGET: target} | ({Role.DRAFT: draft} if draft else {})
            common = {"max_context": max_context, "tree_slots": TREE_SLOTS}
            if layout is Layout.DISAGGREGATED:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swiftspec-")))
                setups = _disaggregated(models, cores, target_groups, folder, common)
            else:
                held = models if layout is Layout.COLOCATED else {Role.TARGET: target}
                setups = [Setup(role=Role.TARGET, rank=0, models=held, cores=cores[Role.TARGET], channels=(), **common)]
            self._workers = []
            for setup in setups:
                worker = _Worker(setup)
                stack.callback(worker.close)
                self._workers.append(worker)
            self.processes = tuple(_await_ready(worker) for worker in self._workers)
            self._stack = stack.pop_all()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def generate(
        self,
        policy: Policy,
        request: Request,
        *,
        request_id: str,
        sampler: Sampler,
        on_commit: Callable[[tuple[int, ...]], None] | None = None,
    ) -> Generation:
        """One request, start to end. Ctrl-C ends it early with what was committed.

        Raises
        ------
        ValueError
            If this engine is not laid out for the policy, the policy cannot accept as the sampler says, or the request
            does not fit the context.
        RuntimeError
            If a process died.
        """
        self._check(policy, request, sampler)
        self._number += 1
        command = Generate(number=self._number, policy=policy, request=request, sampler=sampler)
        start_s = time.perf_counter()
        for worker in self._workers:
            worker.connection.send(command)
        gathered = _Gathered(self._workers, on_commit)
        with interrupts_noted() as interrupted:
            gathered.until_done(interrupted)
        timeline = Timeline(request=request_id, start_s=start_s, spans=tuple(gathered.spans))
        return Generation(tokens=tuple(gathered.tokens), timeline=timeline, interrupted=interrupted.is_set())

    def _check(self, policy: Policy, request: Request, sampler: Sampler) -> None:
        runs = {self.layout, Layout.TARGET_ONLY} if self.layout is Layout.COLOCATED else {self.layout}
        if policy.layout not in runs:
            raise ValueError(f"policy {policy.name} is {policy.layout}, but the engine is laid out {self.layout}")
        if policy.target_groups != self.target_groups:
            raise ValueError(
                f"policy {policy.name} needs {policy.target_groups} target groups; the engine has {self.target_groups}"
            )
        if sampler.needs_draft_probabilities and policy.layout is Layout.DISAGGREGATED:
            raise ValueError(
                f"acceptance is {sampler.acceptance} at temperature {sampler.temperature}, but policy {policy.name} is "
                f"{policy.layout}: draft probabilities are not sent between processes"
            )
        if max(policy.draft_rows, policy.target_rows) > TREE_SLOTS:
            rows = max(policy.draft_rows, policy.target_rows)
            raise ValueError(f"policy {policy.name} needs {rows} tree rows; the engine's caches hold {TREE_SLOTS}")
        length = len(request.prompt) + request.max_new_tokens
        if length > self.max_context:
            raise ValueError(
                f"prompt has {len(request.prompt)} tokens; with max_new_tokens {request.max_new_tokens} "
                f"that is over the context of {self.max_context}"
            )


class _Gathered:
    """What the processes say during one request."""

    def __init__(self, workers: list[_Worker], on_commit: Callable[[tuple[int, ...]], None] | None) -> None:
        self._running = list(workers)
        self._on_commit = on_commit
        self.tokens: list[int] = []
        self.spans: list[Span] = []

    def until_done(self, interrupted: Event) -> None:
        """Drain until every program has ended; once interrupted, tell them to, and wait no longer than a bound."""
        deadline_s = math.inf
        while self._running and time.perf_counter() < deadline_s:
            for worker in list(self._running):
                while worker in self._running and worker.connection.poll():
                    self._take(worker)
            if interrupted.is_set() and deadline_s == math.inf:
                deadline_s = time.perf_counter() + _STOP_WITHIN_S
                for worker in self._running:
                    worker.connection.send(None)
            if self._running:
                time.sleep(_DRAIN_EVERY_S)

    def _take(self, worker: _Worker) -> None:
        message = worker.receive()
        if isinstance(message, Committed):
            self.tokens += message.tokens
            if self._on_commit:
                self._on_commit(message.tokens)
        elif isinstance(message, Finished):
            self.spans += message.spans
            self._running.remove(worker)


def _cores(groups: Mapping[Role, tuple[int, ...]]) -> dict[Role, tuple[int, ...]]:
    """Device numbers to cores: device n is the n-th core that this process may use."""
    available = sorted(os.sched_getaffinity(0))
    for role, devices in groups.items():
        if not devices or max(devices) >= len(available) or min(devices) < 0:
            raise ValueError(
                f"{role} is placed on devices {list(devices)}; this machine offers {len(available)}, numbered from 0"
            )
    return {role: tuple(available[device] for device in devices) for role, devices in groups.items()}


def _disaggregated(
    models: Mapping[Role, ModelRef],
    cores: Mapping[Role, tuple[int, ...]],
    target_groups: int,
    folder: Path,
    common: Mapping[str, int],
) -> list[Setup]:
    """A process per target group, and one of the draft, with a channel to each of them."""
    size, rest = divmod(len(cores[Role.TARGET]), target_groups)
    if rest:
        raise ValueError(
            f"target is placed on {len(cores[Role.TARGET])} devices; expected {target_groups} equal groups"
        )
    channels = tuple(f"ipc://{folder / f'channel-{rank}'}" for rank in range(target_groups))
    targets = [
        Setup(
            role=Role.TARGET,
            rank=rank,
            models={Role.TARGET: models[Role.TARGET]},
            cores=cores[Role.TARGET][rank * size : (rank + 1) * size],
            channels=(channel,),
            **common,
        )
        for rank, channel in enumerate(channels)
    ]
    held = {Role.DRAFT: models[Role.DRAFT]}
    draft = Setup(role=Role.DRAFT, rank=0, models=held, cores=cores[Role.DRAFT], channels=channels, **common)
    return [*targets, draft]


def _await_ready(worker: _Worker) -> ProcessInfo:
    ready = worker.receive()
    assert isinstance(ready, Ready), "the first message is Ready or Failed"
    return ProcessInfo(role=worker.role, rank=worker.rank, pid=ready.pid, cores=ready.cores)
