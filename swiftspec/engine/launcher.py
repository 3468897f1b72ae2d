"""Launcher of the engine: starts its processes, hands out requests, gathers tokens and timelines, cleans up."""

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType

from swiftspec.artifacts.candidate_costs import usual_gather_s
from swiftspec.artifacts.load_options import usual_prefill_rows
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.devices.local import TREE_SLOTS, Device, check_device
from swiftspec.engine.checks import ContextLimit, check_acceptance, check_layout, check_tree
from swiftspec.engine.dispatcher import Dispatcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.engine.process.interrupts import interrupts_noted
from swiftspec.engine.process.placement import Executor, LocalExecutor, WorkerSpec, check_groups, worker_specs
from swiftspec.engine.process.protocol import Setup
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.engine.process.timeouts import Silence
from swiftspec.engine.process.worker_group import ProcessInfo, WorkerGroup
from swiftspec.engine.requests.task import RequestOptions
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

__all__ = ["PATIENCE_S", "Generation", "Launcher", "ProcessInfo"]

PATIENCE_S = 0.5  # default for plans without one
MAX_RESTARTS = 3
_LOOK_EVERY_S = 0.01
_REPORT_EVERY_S = 0.02  # where no core is left for the launcher, whose every waking interrupts a forward
_ONE_AT_A_TIME = AdmissionLimits(max_running=1)
_PLAIN = RequestOptions()
_SAY_AFTER_S = 10.0  # of waiting for models, before a warning names the processes
_log = logging.getLogger("swiftspec")


class Launcher:
    """Warm processes for one model pair on given devices; a context manager.

    Parameters
    ----------
    target, draft : ModelRef
        `draft` may be None if no policy drafts.
    groups : mapping of Role to device numbers
        Device n is the n-th core this process may use, or GPU n. Disaggregated: groups of both roles, disjoint unless
        they share a GPU; otherwise only the target's group, for both models.
    layout : Layout
        Layout that the policies to come need; a co-located engine also decodes without its draft.
    target_groups : int
        Equal groups that the target's devices are split into, each with a copy of the target.
    ranks : mapping of Role to int
        Processes that divide each of a role's groups, and its models, equally; the default is one on a CPU, with a
        thread per core, and one for each GPU.
    max_context : int
        Prompt and output tokens of the longest request.
    device : "cpu" or "cuda"
        Kind of the devices in `groups`. On a GPU a process is one rank with one GPU; roles that share a GPU are two
        processes on it.
    patience_s : float
        Longest that a target waits for its draft before it decodes alone.
    fallback : Policy
        Policy without a draft; prompt lookup if not given.
    max_restarts : int
        How often within an hour a draft that died is restarted. After that the target decodes alone, and the logger
        `swiftspec` warns of it.
    admission : AdmissionLimits
        How many requests run and wait at once; one runs, if not given.
    batch : BatchLimits
        Limits of a step.
    steering : Steering
        What decides how much is drafted and verified; all that policies ask for, if not given.
    tenants : sequence of str
        Directories of the target's fine-tunes and adapters, numbered from 1.
    executor : Executor
        Where processes run; this machine if not given.
    cancelled : Event
        Set by another thread, it cancels the start.

    Raises
    ------
    ValueError
        If a model cannot be loaded or a device does not exist; no process is left running.
    EngineError
        If a process ends while it loads: the target's, or a draft's four times.
    InterruptedError
        If the start was cancelled.
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
        ranks: Mapping[Role, int] | None = None,
        device: Device = "cpu",
        patience_s: float = PATIENCE_S,
        fallback: Policy | None = None,
        max_restarts: int = MAX_RESTARTS,
        admission: AdmissionLimits = _ONE_AT_A_TIME,
        batch: BatchLimits | None = None,
        steering: Steering | None = None,
        tenants: Sequence[str] = (),
        executor: Executor | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        if patience_s <= 0:
            raise ValueError(f"patience_s is {patience_s}; expected a positive time")
        self.layout, self.device = layout, device
        self.target_groups, self.max_context, self.patience_s = target_groups, max_context, patience_s
        self._max_running, self._batch = admission.max_running, batch or BatchLimits()
        self._steering, self._tenants = steering, tuple(tenants)
        self.draft_facts = draft_facts(draft.model) if draft else DraftFacts()
        self._tree_slots = TREE_SLOTS[device]
        with ExitStack() as stack:
            if executor is None:
                check_device(device)
                if device == "cpu" and any(each.dtype != "bfloat16" for each in (target, draft) if each):
                    prepare_library()  # which the processes load
                executor = LocalExecutor(stack.enter_context(run_folder()), stack.enter_context(shared_fork_server()))
            available = executor.num_devices(device)
            check_groups(groups, ranks or {}, target_groups=target_groups, device=device, num_available=available)
            tp_groups = worker_specs(groups, ranks or {}, target_groups=target_groups, device=device)
            num_used = sum(len(worker_spec.devices) for tp_group in tp_groups for worker_spec in tp_group)
            self._report_every_s = _REPORT_EVERY_S if device == "cpu" and num_used == available else 0.0
            models = {Role.TARGET: target} | ({Role.DRAFT: draft} if draft else {})
            leaders = [tp_group[0] for tp_group in tp_groups]
            self._vocab_size = ModelSpec.from_directory(model_directory(target.model)).vocab_size
            setups = [
                [self._setup(worker_spec, leaders, executor, models, device) for worker_spec in tp_group]
                for tp_group in tp_groups
            ]
            worker_groups = [WorkerGroup(executor, tp_group, max_restarts=max_restarts) for tp_group in setups]
            self._targets = [worker_group for worker_group in worker_groups if worker_group.role is Role.TARGET]
            self._draft = next(
                (worker_group for worker_group in worker_groups if worker_group.role is Role.DRAFT), None
            )
            for worker_group in worker_groups:
                stack.callback(worker_group.close)
                worker_group.start()
            self._await_ready(worker_groups, cancelled or threading.Event())
            self._dispatcher = Dispatcher(
                self._targets,
                self._draft,
                admission=admission,
                fallback=fallback or PromptLookup(),
                patience_s=patience_s,
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
        max_restarts: int = MAX_RESTARTS,
        admission: AdmissionLimits = _ONE_AT_A_TIME,
        batch: BatchLimits | None = None,
        control: Control | None = None,
        tenants: Sequence[str] = (),
        executor: Executor | None = None,
        cancelled: threading.Event | None = None,
    ) -> "Launcher":
        """The processes that a plan's candidate needs.

        `layout` defaults to the candidate's; co-located if its devices are to serve co-located policies, too. `control`
        decides how much is drafted. ValueError if the policy cannot be controlled, or the plan does not know its costs.
        """
        policy = candidate.build()
        layout = layout or policy.layout
        fallback = plan.candidates.get(PromptLookup.name)
        return cls(
            target=plan.target,
            draft=None if layout is Layout.TARGET_ONLY else plan.draft,
            groups=candidate.groups,
            layout=layout,
            max_context=max_context,
            target_groups=policy.target_groups,
            ranks=candidate.ranks,
            device="cuda" if plan.device == "cuda" else "cpu",
            patience_s=candidate.patience_s,
            fallback=fallback.build() if fallback else None,
            max_restarts=max_restarts,
            admission=admission,
            batch=batch
            or BatchLimits(gather_s=usual_gather_s(candidate), prefill_rows=usual_prefill_rows(plan.device)),
            steering=None if control is None else Steering.of(policy, control, candidate.costs),
            tenants=tenants,
            executor=executor,
            cancelled=cancelled,
        )

    @staticmethod
    def _await_ready(worker_groups: Sequence[WorkerGroup], cancelled: threading.Event) -> None:
        """Wait until all processes have their models; there is no timeout, since loading may take any time.

        After a while a warning names the processes still loading, and again whenever their states have changed.
        """
        waiting, said = Silence(), ""
        while not all(worker_group.is_ready for worker_group in worker_groups):
            for worker_group in worker_groups:
                worker_group.attend_start()
            if waiting.look() >= _SAY_AFTER_S:
                states = ", ".join(state for worker_group in worker_groups for state in worker_group.unready())
                if states and states != said:
                    _log.warning("still waiting for models to be loaded by: %s", said := states)
            if cancelled.wait(_LOOK_EVERY_S):
                raise InterruptedError("the start was cancelled")

    def _setup(
        self,
        worker_spec: WorkerSpec,
        leaders: Sequence[WorkerSpec],
        executor: Executor,
        models: Mapping[Role, ModelRef],
        device: Device,
    ) -> Setup:
        channels: tuple[str, ...] = ()
        is_apart, reads_target = self.layout is Layout.DISAGGREGATED, self.draft_facts.kind.reads_target
        if is_apart and worker_spec.rank == 0:
            *targets, draft = leaders
            channels = tuple(executor.channel(target, draft) for target in targets if worker_spec in (target, draft))
        return Setup(
            role=worker_spec.role,
            group=worker_spec.group,
            rank=worker_spec.rank,
            size=worker_spec.size,
            tp_group="",
            models={worker_spec.role: models[worker_spec.role]} if is_apart else models,
            elsewhere={role: models[role] for role in models.keys() - {worker_spec.role} if is_apart and reads_target},
            devices=worker_spec.devices,
            device=device,
            channels=channels,
            vocab_size=self._vocab_size,
            max_context=self.max_context,
            tree_slots=self._tree_slots,
            tenants=self._tenants if worker_spec.role is Role.TARGET else (),
            max_running=self._max_running,
            batch=self._batch,
            steering=self._steering if worker_spec.role is Role.TARGET else None,
            report_every_s=self._report_every_s,
        )

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process; requests under way fail."""
        self._dispatcher.close()
        for worker_group in self._worker_groups:
            worker_group.hang_up()  # all of them, before waiting for the first
        self._stack.close()

    @property
    def _worker_groups(self) -> list[WorkerGroup]:
        return [*self._targets, *([self._draft] if self._draft else [])]

    @property
    def processes(self) -> tuple[ProcessInfo, ...]:
        """Processes that are ready: all, unless a draft has died."""
        return tuple(process for worker_group in self._worker_groups for process in worker_group.processes)

    @property
    def num_restarts(self) -> int:
        """Number of times the draft was restarted."""
        return self._draft.num_starts - 1 if self._draft else 0

    def state(self) -> EngineState:
        """Requests, caches and draft, as of now."""
        return self._dispatcher.state()

    def generate(
        self,
        policy: Policy,
        request: Request,
        *,
        request_id: str,
        sampler: Sampler,
        on_commit: Callable[[tuple[int, ...]], None] | None = None,
    ) -> Generation:
        """One request, start to end. Ctrl-C ends it early with the tokens so far. Raises as `stream`."""
        with (
            interrupts_noted() as interrupted,
            closing(
                self.stream(policy, request, request_id=request_id, sampler=sampler, interrupted=interrupted)
            ) as stream,
        ):
            try:
                while True:
                    tokens = next(stream)
                    if on_commit:
                        on_commit(tokens)
            except StopIteration as finished:
                generation: Generation = finished.value
        # Also an interrupt that came after the last token: later nobody would notice it.
        return replace(generation, interrupted=generation.interrupted or interrupted.is_set())

    def stream(
        self,
        policy: Policy,
        request: Request,
        *,
        request_id: str,
        sampler: Sampler,
        options: RequestOptions = _PLAIN,
        interrupted: threading.Event | None = None,
    ) -> Generator[tuple[int, ...], None, Generation]:
        """Tokens of one request as they are committed; closing the generator, or setting `interrupted`, ends it early.

        Raises
        ------
        ValueError
            If the engine's layout does not suit the policy, the policy does not support the sampler's acceptance
            method, or the request does not fit the context.
        EngineError
            If a process of the target died; its `tokens` are what had been committed.
        """
        events = Events()
        running = self.submit(
            policy, request, request_id=request_id, sampler=sampler, options=options, deliver=events.put
        )
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
        request: Request,
        *,
        request_id: str,
        sampler: Sampler,
        deliver: Deliver,
        options: RequestOptions = _PLAIN,
    ) -> RunningRequest:
        """Begin a request, or queue it; thread-safe. `deliver` takes its events, in a thread of the launcher's.

        Events are commits, and at last a `Generation`, or an exception as of `stream`. ValueError as there.
        """
        self._check(policy, request, sampler)
        request = replace(request, mask_token=self.draft_facts.mask_token)
        return self._dispatcher.submit(
            policy, request, name=request_id, sampler=sampler, options=options, deliver=deliver
        )

    def cancel(self, running: RunningRequest) -> None:
        """End a request wherever it is; thread-safe. Its `Generation` is delivered soon, if it was not before."""
        self._dispatcher.cancel(running)

    def _check(self, policy: Policy, request: Request, sampler: Sampler) -> None:
        check_layout(policy, self.layout, target_groups=self.target_groups)
        check_acceptance(policy, sampler)
        check_draft(policy, self.draft_facts.kind)
        check_tree(policy, self._tree_slots)
        limit = ContextLimit(num_positions=self.max_context, what=f"the context of {self.max_context}")
        limit.check(len(request.prompt), request.max_new_tokens)
