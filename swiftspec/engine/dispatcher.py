"""Dispatcher: the launcher's thread that begins requests on the worker groups and delivers what they report.

It sleeps until a worker reports or a caller submits something. A draft that dies is restarted, and joins the requests
under way when it is ready. Targets are waited for without limit, with a log message when they are silent: a slow one
cannot be told from one that hangs, and nothing else can continue.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from itertools import count
from statistics import fmean
from threading import Thread

from swiftspec.engine.process.pipes import Wakeup
from swiftspec.engine.process.protocol import EndReport, Fault, Generate, RequestReport, ScoreReport
from swiftspec.engine.process.timeouts import DraftRecovery, TargetSilence
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.running import Ending, RunningRequest, replicas_of
from swiftspec.engine.stats import DraftState, EngineState
from swiftspec.errors import EngineBusyError, EngineError
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas, Router

_LOOK_EVERY_S = 0.25  # nothing is late by more than this that no report tells
_LOOK_OFTEN_S = 0.02  # while a process starts or ends, or is on another node
_ENDS_WITHIN_S = 1.0  # programs that were told to end
_DRAFT_ENDS_WITHIN_S = 0.25  # after the target has
_log = logging.getLogger("swiftspec")


class Dispatcher:
    """Requests of an engine, while they wait and run. admission: of every replica."""

    def __init__(
        self,
        targets: Sequence[WorkerGroup],
        drafts: Sequence[WorkerGroup],
        *,
        admission: AdmissionLimits,
        recovery: DraftRecovery,
        replicas: Replicas = ONE_REPLICA,
    ) -> None:
        self._targets, self._drafts = targets, drafts
        self._groups = [*targets, *drafts]
        self._recovery = recovery
        self._admission = admission
        self._replicas = list(replicas_of(targets, drafts, replicas, admission))
        self._router = Router(replicas.router)
        self._keys, self._numbers = count(), count(1)
        self._requests: dict[int, RunningRequest] = {}  # by key: all that have not ended
        self._running: dict[int, RunningRequest] = {}  # by the number of their programs
        self._failure: Exception | None = None  # of a target, after which nothing runs
        self._silence = TargetSilence()
        self._is_closed = False
        self._orders: deque[Callable[[], None]] = deque()  # from other threads
        self._wakeup = Wakeup()
        self._heard: list[RunningRequest] = []  # requests with commits to deliver
        self._has_changed = False  # something that may make other things due
        self._look_again_s = self._look_around_s = 0.0
        self._thread = Thread(target=self._serve, name="swiftspec-dispatcher", daemon=True)
        self._thread.start()

    def submit(self, running: RunningRequest) -> None:
        """Queue a request; thread-safe. Its last event is a `Generation`, or an exception."""
        running.key = next(self._keys)
        self._order(lambda: self._enqueue(running))

    def cancel(self, running: RunningRequest) -> None:
        """End a request wherever it is; thread-safe. Its last event comes soon."""
        self._order(lambda: self._cancel(running))

    def state(self) -> EngineState:
        """Present state, roughly: the thread may be changing it."""
        queues = [replica.queue for replica in self._replicas]
        draft = DraftState.NONE
        if self._drafts:
            is_lost = DraftState.GONE if any(each.is_given_up for each in self._drafts) else DraftState.STARTING
            draft = DraftState.READY if all(each.is_ready for each in self._drafts) else is_lost
        return EngineState(
            num_running=sum(queue.num_running for queue in queues),
            num_waiting=sum(queue.num_waiting for queue in queues),
            max_running=self._admission.max_running * len(queues),
            cache_usage=fmean(queue.usage for queue in queues),
            num_preemptions=sum(queue.num_preemptions for queue in queues),
            num_refused=sum(queue.num_refused for queue in queues),
            draft=draft,
            failure="" if self._failure is None else str(self._failure),
        )

    def close(self) -> None:
        """End the thread; calling it again does nothing. Requests that have not ended fail."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wakeup.ring()
        self._thread.join()
        self._wakeup.close()

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        self._wakeup.ring()

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                self._look(*self._wakeup.wait(self._look_again_s))
            except Exception as error:  # noqa: BLE001 - callers wait for this thread, and must hear of any error
                self._fail(error)
        self._fail(EngineError("the engine was closed"))

    def _look(self, readable: Set[int], has_orders: bool) -> None:
        """Obey orders, take reports, and begin what can begin.

        The roles may need this thread's core: a report of committed tokens, which most are, is only handed on.
        """
        if has_orders:
            self._obey()
        if self._failure is not None:
            self._wakeup.watch(())
            return
        for target in self._targets:
            if target.may_report(readable):
                for report in target.reports():
                    self._take(target, report)
        for draft in self._drafts:
            if draft.may_report(readable):
                self._has_changed = True
                for report in draft.reports_or_restart():
                    self._take(draft, report)
        self._deliver_commits()
        is_waited_for = any(replica.queue.num_waiting for replica in self._replicas)
        if self._has_changed or is_waited_for or time.monotonic() >= self._look_around_s:
            self._look_around()

    def _look_around(self) -> None:
        """Do what is due: restarted drafts, deadlines, waiting requests."""
        self._has_changed = False
        for draft in self._drafts:
            self._rejoin(draft)
        self._mind_deadlines()
        if self._running:
            here = [process.pid for target in self._targets for process in target.processes if not process.node]
            self._silence.look(here)
        for replica in self._replicas:
            self._admit(replica.queue)
        filenos = [fileno for group in self._groups for fileno in group.filenos()]
        is_busy = None in filenos or any(request.deadline_s is not None for request in self._running.values())
        is_starting = any(not draft.is_ready for draft in self._drafts)
        self._wakeup.watch(filenos)
        self._look_again_s = _LOOK_OFTEN_S if is_busy or is_starting else _LOOK_EVERY_S
        self._look_around_s = time.monotonic() + self._look_again_s

    def _obey(self) -> None:
        self._has_changed = True
        while self._orders:
            self._orders.popleft()()

    def _enqueue(self, running: RunningRequest) -> None:
        longest = len(running.task.request.prompt) + running.task.request.max_new_tokens
        if self._failure is not None:
            running.fail(self._failure)
            return
        running.replica = self._replicas[self._router.choose([each.num_requests for each in self._replicas])]
        try:
            has_room = running.replica.queue.submit(
                running.key, num_tokens=running.num_tokens, max_tokens=longest, client=running.task.client
            )
        except ValueError as error:
            running.tell(error)
            return
        if has_room:
            self._requests[running.key] = running
        else:
            running.tell(EngineBusyError(f"{self._admission.max_waiting} requests are waiting, which is the limit"))

    def _cancel(self, running: RunningRequest) -> None:
        if running.key not in self._requests:
            return  # it has ended
        if running.command is None:
            self._end(running, interrupted=True)
        else:
            self._stop(running, Ending.CANCELLED)

    def _stop(self, running: RunningRequest, ending: Ending) -> None:
        self._has_changed = True
        assert running.command is not None
        running.ending = ending
        running.deadline_s = time.monotonic() + _ENDS_WITHIN_S
        for group in self._groups:
            group.cancel(running.command.number)

    def _admit(self, queue: AdmissionQueue) -> None:
        self._give_way(queue.make_way())
        for key in queue.admit():
            request = self._requests[key]
            if request.command is None:
                self._begin(request)
            else:  # it gave way, and its programs have not ended yet
                request.is_due = True

    def _begin(self, running: RunningRequest) -> None:
        replica = running.replica
        assert replica is not None
        draft = replica.next_draft() if running.policy.layout is Layout.DISAGGREGATED else None
        has_draft = draft is not None and draft.has_room
        wants_scores = running.sampler.num_log_probs is not None
        if draft is not None and running.policy.target_groups > 1 and (wants_scores or not has_draft):
            # The draft holds their text, and nothing continues without it. It commits, and knows no log-probs.
            running.policy, draft = self._recovery.fallback, None
        command = Generate(
            number=next(self._numbers),
            policy=running.policy,
            request=running.rest,
            sampler=running.sampler,
            patience_s=self._recovery.patience_s,
            alone=draft is not None and not has_draft,
            fallback=self._recovery.fallback,
            peers=() if draft is None else (draft.group,),
            tpot_s=running.task.tpot_s,
            tenant=running.task.tenant,
        )
        if not self._running:
            self._silence.broken()
        self._running[command.number] = running
        targets = replica.targets[: command.policy.target_groups]
        running.begin(command, targets, draft)
        for target in targets:
            target.generate(command)
        if draft is not None and has_draft:
            draft.generate(running.draft_command)

    def _rejoin(self, draft: WorkerGroup) -> None:
        """Let a draft that is new, or back, join the requests under way."""
        for number, running in self._running.items():
            command = running.command
            assert command is not None
            # With several target groups the draft commits: a restarted one would commit the same tokens again.
            can_rejoin = running.draft is draft and command.policy.target_groups == 1 and draft.has_room
            if can_rejoin and running.targets_left and running.ending is None and not draft.knows(number):
                draft.generate(replace(running.draft_command, alone=True))

    def _take(self, group: WorkerGroup, report: RequestReport) -> None:
        if group.role is Role.TARGET:
            self._silence.broken()
        running = self._running.get(report.number)
        if running is None:
            return  # of a request that has ended
        if isinstance(report, EndReport):
            self._has_changed = True
            if report.fault is not None:
                self._note_fault(group, running, report.fault)
            running.spans += report.spans
            if group.role is Role.TARGET:
                running.losses += report.losses
                running.alone_s += report.alone_s
                running.rows_asked += report.rows_asked
            running.targets_left.discard(group)
            self._settle(running)
            return
        if isinstance(report, ScoreReport):
            running.scores.append(report)
            return
        running.tokens += report.tokens
        running.unheard.append(report.tokens)
        self._heard.append(running)
        if running.ending is None:
            assert running.replica is not None
            self._give_way(running.replica.queue.grow(running.key, running.num_tokens))

    def _note_fault(self, group: WorkerGroup, running: RunningRequest, fault: Fault) -> None:
        """An error in a program of a request: that of a target ends it; without its draft it goes on."""
        _log.error(
            "request %s: an error in the %s, %s\n%s", running.task.prompt_id, group.role, fault.sentence, fault.trace
        )
        if group.role is Role.TARGET:
            running.failure = EngineError(f"the request failed in the {group.role} ({fault.sentence})")
            self._stop(running, Ending.FAILED)

    def _deliver_commits(self) -> None:
        for running in self._heard:
            running.deliver_commits()
            if running.failure is not None and running.command is not None and running.ending is None:
                self._stop(running, Ending.FAILED)
        self._heard.clear()

    def _give_way(self, keys: Sequence[int]) -> None:
        for key in keys:
            running = self._requests[key]
            running.preemptions += 1
            running.is_due = False  # it may have been admitted again before its programs had ended
            if running.ending is None:
                self._stop(running, Ending.PREEMPTED)

    def _settle(self, running: RunningRequest) -> None:
        """End a request whose targets are done; its draft has a moment to report its spans."""
        assert running.command is not None
        if running.targets_left:
            return
        if running.draft is not None and running.draft.is_at(running.command.number):
            # With several target groups the draft commits: what it has not told yet is output, not only spans.
            within_s = self._recovery.patience_s if running.command.policy.target_groups > 1 else _DRAFT_ENDS_WITHIN_S
            running.deadline_s = running.deadline_s or time.monotonic() + within_s
            return
        self._programs_ended(running)

    def _programs_ended(self, running: RunningRequest) -> None:
        assert running.command is not None
        number, ending = running.command.number, running.ending
        was_stopped = ending is Ending.CANCELLED and not running.is_complete
        del self._running[number]
        for group in self._groups:
            group.forget(number)
        running.command = running.deadline_s = running.ending = None
        if running.is_complete or was_stopped or running.failure is not None:
            self._end(running, interrupted=was_stopped)
        elif ending is Ending.PREEMPTED:
            if running.is_due:
                self._begin(running)
        elif running.losses and running.policy is not self._recovery.fallback:
            running.policy = self._recovery.fallback
            self._begin(running)
        else:
            self._end(running, interrupted=False)

    def _end(self, running: RunningRequest, *, interrupted: bool) -> None:
        del self._requests[running.key]
        assert running.replica is not None
        running.replica.queue.release(running.key)
        running.deliver_commits()
        if running.failure is not None:
            running.fail(running.failure)
        else:
            running.tell(running.generation(interrupted=interrupted))

    def _mind_deadlines(self) -> None:
        now_s = time.monotonic()
        for running in list(self._running.values()):
            if running.deadline_s is None or now_s < running.deadline_s:
                continue
            assert running.command is not None
            for group in self._groups:
                group.cancel(running.command.number)
            if running.ending is None and running.command.policy.target_groups > 1:
                running.losses += 1  # of the draft, with the end of the output
            self._programs_ended(running)

    def _fail(self, error: Exception) -> None:
        """End every request with an error; later ones fail at once."""
        self._failure = error
        self._deliver_commits()
        self._running.clear()
        for running in self._requests.values():
            running.fail(error)
        self._requests.clear()
