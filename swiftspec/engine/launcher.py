"""Launcher of the engine: starts its processes, hands out requests, gathers tokens and timelines, cleans up."""

import logging
import math
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from typing import TypedDict, Unpack

from swiftspec.artifacts.candidate import usual_gather_s
from swiftspec.artifacts.load_options import usual_prefill_rows
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.devices.local import TREE_SLOTS, Device, check_device
from swiftspec.engine.checks import ContextLimit, check_layout, check_tree
from swiftspec.engine.dispatcher import Dispatcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.process.placement import Executor, LocalExecutor, Placement
from swiftspec.engine.process.protocol import ProcessInfo, ScoreReport, Setup, WorkerSpec
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.engine.process.timeouts import DraftRecovery, Silence
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.requests import Task
from swiftspec.engine.running import Deliver, Events, Generation, RunningRequest, next_event
from swiftspec.engine.stats import EngineState
from swiftspec.files.document import ModelRef
from swiftspec.kernels.cpu_library import prepare_library
from swiftspec.models.draft_kinds import DraftFacts, draft_facts
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.base import check_draft
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.controls.control import Control
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas

__all__ = ["Generation", "LaunchOptions", "Launcher"]

_LOOK_EVERY_S = 0.01
_REPORT_EVERY_S = 0.02  # where no core is left for the launcher, whose every waking interrupts a forward
_ONE_AT_A_TIME = AdmissionLimits(max_running=1)
_USUAL_RECOVERY, _USUAL_BATCH = DraftRecovery(), BatchLimits()
_SAY_AFTER_S = 10.0  # of waiting for models, before a warning names the processes
_log = logging.getLogger("swiftspec")


class LaunchOptions(TypedDict, total=False):
    """Options of a `Launcher` that no plan knows."""

    admission: AdmissionLimits
    tenants: Sequence[str]
    executor: Executor | None
    cancelled: threading.Event | None


class Launcher(AbstractContextManager["Launcher"]):
    """Warm processes for one model pair on given devices; a context manager.

    placement: devices of the roles; those of other machines if the executor is theirs.
    layout: that the policies to come need; a co-located engine also decodes without its draft.
    max_context: prompt and output tokens of the longest request.
    admission: how many requests of a replica run and wait at once; one runs, if not given.
    steering: what decides how much is drafted and verified; all that policies ask for, if not given.
    tenants: directories of the target's fine-tunes and adapters, numbered from 1.
    replicas: how many targets share the requests, and drafts the targets; the placement has groups for all of them.
    executor: this machine if not given. cancelled: set by another thread, it cancels the start.

    ValueError: if a model cannot be loaded or a device does not exist; no process is left running. EngineError: if a
    process ends while it loads: the target's, or a draft's four times. InterruptedError: if the start was cancelled.
    """

    def __init__(
        self,
        models: Mapping[Role, ModelRef],
        placement: Placement,
        *,
        layout: Layout,
        max_context: int,
        recovery: DraftRecovery = _USUAL_RECOVERY,
        admission: AdmissionLimits = _ONE_AT_A_TIME,
        batch: BatchLimits = _USUAL_BATCH,
        steering: Steering | None = None,
        tenants: Sequence[str] = (),
        replicas: Replicas = ONE_REPLICA,
        executor: Executor | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.layout, self.device = layout, placement.device
        self.target_groups = placement.target_groups // replicas.num_targets  # of a request
        self.max_context = max_context
        draft = models.get(Role.DRAFT)
        self.draft_facts = draft_facts(draft.model) if draft else DraftFacts()
        with ExitStack() as stack:
            if executor is None:
                executor = _this_machine(stack, models.values(), self.device)
            available = executor.num_devices(self.device)
            placement.check(available)
            tp_groups = placement.worker_specs()
            num_used = sum(len(spec.devices) for tp_group in tp_groups for spec in tp_group)
            vocab_size = ModelSpec.from_directory(model_directory(models[Role.TARGET].model)).vocab_size

            num_shared = admission.max_running * replicas.num_targets
            most_drafted = math.ceil(num_shared / (replicas.num_drafts or replicas.num_targets))

            def setup_of(spec: WorkerSpec) -> Setup:
                is_target = spec.role is Role.TARGET
                own, elsewhere = self._models_of(spec.role, models)
                return Setup(
                    **asdict(spec),
                    tp_group="",
                    models=own,
                    elsewhere=elsewhere,
                    device=self.device,
                    channels=self._channels_of(spec, tp_groups, executor),
                    vocab_size=vocab_size,
                    max_context=max_context,
                    tree_slots=TREE_SLOTS[self.device],
                    tenants=tuple(tenants) if is_target else (),
                    max_running=admission.max_running if is_target else most_drafted,
                    batch=batch,
                    steering=steering if is_target else None,
                    report_every_s=_REPORT_EVERY_S if self.device == "cpu" and num_used == available else 0.0,
                )

            self._worker_groups = [
                WorkerGroup(executor, [setup_of(spec) for spec in tp_group], max_restarts=recovery.max_restarts)
                for tp_group in tp_groups
            ]
            targets = [group for group in self._worker_groups if group.role is Role.TARGET]
            self._drafts = [group for group in self._worker_groups if group.role is Role.DRAFT]
            for worker_group in self._worker_groups:
                stack.callback(worker_group.close)
                worker_group.start()
            self._await_ready(self._worker_groups, cancelled or threading.Event())
            self._dispatcher = Dispatcher(
                targets, self._drafts, admission=admission, recovery=recovery, replicas=replicas
            )
            self._stack = stack.pop_all()

    @classmethod
    def for_candidate(
        cls,
        plan: Plan,
        candidate: Candidate,
        *,
        max_context: int,
        layout: Layout | None = None,
        max_restarts: int | None = None,
        batch: BatchLimits | None = None,
        control: Control | None = None,
        replicas: Replicas = ONE_REPLICA,
        **options: Unpack[LaunchOptions],
    ) -> "Launcher":
        """The processes that a plan's candidate needs, for one replica of it or several.

        `layout` defaults to the candidate's; co-located if its devices are to serve co-located policies, too.
        ValueError if the policy cannot be controlled, or the plan does not know its costs.
        """
        policy = candidate.build()
        replicas.check(policy)
        layout = layout or policy.layout
        fallback = plan.candidates.get(PromptLookup.name)
        return cls(
            {Role.TARGET: plan.target} | ({} if layout is Layout.TARGET_ONLY else {Role.DRAFT: plan.draft}),
            Placement(
                groups=candidate.groups,
                ranks=candidate.ranks,
                target_groups=policy.target_groups,
                device="cuda" if plan.device == "cuda" else "cpu",
            ).replicated(replicas),
            layout=layout,
            max_context=max_context,
            recovery=DraftRecovery(
                patience_s=candidate.patience_s,
                fallback=fallback.build() if fallback else _USUAL_RECOVERY.fallback,
                max_restarts=_USUAL_RECOVERY.max_restarts if max_restarts is None else max_restarts,
            ),
            batch=batch
            or BatchLimits(
                gather_s=usual_gather_s(candidate),
                prefill_rows=usual_prefill_rows(plan.device),
                num_batches=policy.num_batches,
            ),
            steering=None if control is None else Steering.of(policy, control, candidate.costs),
            replicas=replicas,
            **options,
        )

    @staticmethod
    def _await_ready(worker_groups: Sequence[WorkerGroup], cancelled: threading.Event) -> None:
        """Wait until all processes have their models, without a timeout; warnings name those that take long."""
        waiting, said = Silence(), ""
        while not all(worker_group.is_ready for worker_group in worker_groups):
            for worker_group in worker_groups:
                worker_group.attend_start()
            if waiting.look() >= _SAY_AFTER_S:
                states = ", ".join(state for worker_group in worker_groups for state in worker_group.unready())
                if states and states != said:
                    _log.warning("still waiting for models to be loaded by: %s", said := states)
            time.sleep(_LOOK_EVERY_S)  # `Event.wait` may turn a KeyboardInterrupt into a RuntimeError, of its lock
            if cancelled.is_set():
                raise InterruptedError("the start was cancelled")

    def _models_of(
        self, role: Role, models: Mapping[Role, ModelRef]
    ) -> tuple[Mapping[Role, ModelRef], Mapping[Role, ModelRef]]:
        """The models in a role's processes, and those that it reads of the other's."""
        if self.layout is not Layout.DISAGGREGATED:
            return models, {}
        others = {other: model for other, model in models.items() if other is not role}
        return {role: models[role]}, others if self.draft_facts.kind.reads_target else {}

    def _channels_of(
        self, spec: WorkerSpec, tp_groups: Sequence[Sequence[WorkerSpec]], executor: Executor
    ) -> tuple[str, ...]:
        """Addresses of a leader's channels, to every leader of the other role."""
        if self.layout is not Layout.DISAGGREGATED or spec.rank > 0:
            return ()
        peers = (leader for leader, *_ in tp_groups if leader.role is not spec.role)
        if spec.role is Role.TARGET:
            return tuple(executor.channel(spec, draft) for draft in peers)
        return tuple(executor.channel(target, spec) for target in peers)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._dispatcher.close()
        for worker_group in self._worker_groups:
            worker_group.hang_up()  # all of them, before waiting for the first
        self._stack.close()

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """Processes that are ready: all, unless a draft has died."""
        return tuple(process for worker_group in self._worker_groups for process in worker_group.processes)

    @property
    def num_restarts(self) -> int:
        return sum(draft.num_starts - 1 for draft in self._drafts)

    def state(self) -> EngineState:
        return self._dispatcher.state()

    def generate(self, policy: Policy, request: Request, *, request_id: str, sampler: Sampler) -> Generation:
        """One request, start to end. Ctrl-C ends it early with the tokens so far. Raises as `stream`."""
        task = Task(prompt_id=request_id, request=request)
        with interrupts_noted() as interrupted:
            generation = whole(self.stream(policy, task, sampler=sampler, interrupted=interrupted))
        # Also an interrupt that came after the last token: later nobody would notice it.
        return replace(generation, interrupted=generation.interrupted or interrupted.is_set())

    def stream(
        self,
        policy: Policy,
        task: Task,
        *,
        sampler: Sampler,
        interrupted: threading.Event | None = None,
        scores: list[ScoreReport] | None = None,
    ) -> Generator[tuple[int, ...], None, Generation]:
        """Tokens of one request as they are committed; closing the generator, or setting `interrupted`, ends it early.

        ValueError: if the engine's layout does not suit the policy, the policy does not support the sampler's
        acceptance method, or the request does not fit the context. EngineError: if a process of the target died; its
        `tokens` are what had been committed.
        """
        events = Events()
        running = self.submit(policy, task, sampler=sampler, deliver=events.put, scores=scores)
        is_over = is_cancelled = False
        try:
            while True:
                event = next_event(events, None if is_cancelled else interrupted)
                if event is None:
                    is_cancelled = True
                    self.cancel(running)
                elif isinstance(event, tuple):
                    yield from event
                else:
                    is_over = True
                    break
        finally:
            if not is_over:  # closed: the next request finds idle processes
                self.cancel(running)
                while isinstance(events.get(), tuple):
                    pass  # nobody takes the tokens any more
        if isinstance(event, Exception):
            raise event
        return event

    def submit(
        self,
        policy: Policy,
        task: Task,
        *,
        sampler: Sampler,
        deliver: Deliver,
        scores: list[ScoreReport] | None = None,
    ) -> RunningRequest:
        """Begin a request, or queue it; thread-safe. `deliver` takes its events, in a thread of the launcher's.

        Events are commits, and at last a `Generation`, or an exception as of `stream`. Log-probs that are wanted are
        added to `scores` before their commit is delivered. ValueError as of `stream`.
        """
        check_layout(policy, self.layout, target_groups=self.target_groups)
        check_draft(policy, self.draft_facts.kind)
        check_tree(policy, TREE_SLOTS[self.device])
        limit = ContextLimit(num_positions=self.max_context, what=f"the context of {self.max_context}")
        limit.check(len(task.request.prompt), task.request.max_new_tokens)
        task = replace(task, request=replace(task.request, mask_token=self.draft_facts.mask_token))
        scores = [] if scores is None else scores
        running = RunningRequest(task=task, policy=policy, sampler=sampler, deliver=deliver, scores=scores)
        self._dispatcher.submit(running)
        return running

    def cancel(self, running: RunningRequest) -> None:
        """End a request wherever it is; thread-safe. Its `Generation` is delivered soon, if it was not before."""
        self._dispatcher.cancel(running)


def whole(commits: Generator[tuple[int, ...], None, Generation]) -> Generation:
    """A request's generation, once all of its commits have come."""
    try:
        while True:
            next(commits)
    except StopIteration as finished:
        generation: Generation = finished.value
        return generation


def _this_machine(stack: ExitStack, models: Iterable[ModelRef], device: Device) -> Executor:
    """This machine's executor, until the stack is closed. ValueError if it has no such devices."""
    check_device(device)
    if device == "cpu" and any(model.dtype != "bfloat16" for model in models):
        prepare_library()  # which the processes load
    return LocalExecutor(stack.enter_context(run_folder()), stack.enter_context(shared_fork_server()))
