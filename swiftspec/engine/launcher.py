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
from typing import Any, Literal

from swiftspec.documents import ModelRef
from swiftspec.engine.interrupts import interrupts_held, interrupts_noted
from swiftspec.engine.ops import KERNEL_TREE_SLOTS
from swiftspec.engine.placement import Process, check_groups, disaggregated, placed, usable_device
from swiftspec.engine.protocol import Committed, Failed, Finished, Generate, Ready, Setup
from swiftspec.engine.sampling import Sampler
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.timeline import Span, Timeline

__all__ = ["Engine", "Generation", "ProcessInfo"]

TREE_SLOTS = {"cpu": 512, "cuda": KERNEL_TREE_SLOTS}  # most tree rows any policy may hold
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
    """A process of the engine, the cores it may use, and what it computes on."""

    role: Role
    rank: int
    pid: int
    cores: tuple[int, ...]
    device: str


class _Worker:
    """A started process and the connection to it."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.role = setup, setup.role
        self.connection, theirs = Pipe()
        threads = str(setup.num_threads)
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
        Device n is the n-th core this process may use, or GPU n. Disaggregated: groups of both roles, disjoint unless
        they share a GPU; otherwise the target's group alone, for both models.
    layout : Layout
        What the policies to come need; a co-located engine also decodes without its draft.
    target_groups : int
        Equal groups that the target's devices are split into, each with a copy of the target.
    max_context : int
        Prompt and output tokens of the longest request.
    device : "cpu" or "cuda"
        What the numbers in `groups` count. On a GPU a process is one rank, and a rank has one GPU; roles that share
        one are two processes on it.

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
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        self.layout = layout
        self.target_groups = target_groups
        self.max_context = max_context
        self._number = 0
        self._tree_slots = TREE_SLOTS[usable_device(device).type]
        check_groups(groups, target_groups=target_groups, device=device)
        with ExitStack() as stack:
            models = {Role.TARGET: target} | ({Role.DRAFT: draft} if draft else {})
            common: dict[str, Any] = {"max_context": max_context, "tree_slots": self._tree_slots}
            if layout is Layout.DISAGGREGATED:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swiftspec-")))
                processes = disaggregated(groups, target_groups, folder)
            else:
                processes = [Process(Role.TARGET, 0, groups[Role.TARGET], ())]
            setups = [
                Setup(
                    role=process.role,
                    rank=process.rank,
                    models=models if layout is Layout.COLOCATED else {process.role: models[process.role]},
                    channels=process.channels,
                    **placed(process.devices, device),
                    **common,
                )
                for process in processes
            ]
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
        if (rows := max(policy.draft_rows, policy.target_rows)) > self._tree_slots:
            raise ValueError(
                f"policy {policy.name} needs {rows} tree rows; the engine's caches hold {self._tree_slots}"
            )
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


def _await_ready(worker: _Worker) -> ProcessInfo:
    ready = worker.receive()
    assert isinstance(ready, Ready), "the first message is Ready or Failed"
    setup = worker.setup
    return ProcessInfo(role=setup.role, rank=setup.rank, pid=ready.pid, cores=ready.cores, device=setup.device)
