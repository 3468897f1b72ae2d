"""One request as it runs through the engine's processes, and the draft's failures and restarts during it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event

from swiftspec.artifacts.timeline import Span
from swiftspec.engine.process.protocol import Committed, Finished, Generate
from swiftspec.engine.process.timeouts import Silence, is_stopped
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.errors import EngineError
from swiftspec.policies.effects import Role

__all__ = ["RunningRequest"]

_DRAIN_EVERY_S = 0.02  # the launcher shares the roles' cores, so it polls rarely instead of reacting at once
_STOP_WITHIN_S = 1.0
_DRAFT_ENDS_WITHIN_S = 0.25  # after the target has
_STOPPED_AFTER_S, _SILENT_AFTER_S = 3.0, 30.0  # of a target's silence: log it, once per request
_log = logging.getLogger("swiftspec")


class RunningRequest:
    """Sends a request to the worker groups and gathers their reports of it.

    The request is finished when the targets are. The wait for them is unlimited, with a log message when they are
    silent: a slow target cannot be told from one that hangs, nothing else can continue, and Ctrl-C ends the wait.

    A draft that dies is restarted, and joins when it is ready. A draft still busy with an earlier request (it was
    suspended) joins when that one ends.

    Parameters
    ----------
    targets : sequence of WorkerGroup
    draft : WorkerGroup or None
        None if no separate process drafts.
    command : Generate
    """

    def __init__(self, targets: Sequence[WorkerGroup], draft: WorkerGroup | None, command: Generate) -> None:
        self._targets = targets
        self._draft = draft
        self._command = command
        self._silence = Silence()
        self._has_warned = False
        # With several target groups the draft commits: a restarted one would commit the same tokens again.
        self._can_rejoin = command.policy.target_groups == 1
        self.tokens: list[int] = []
        self.spans: list[Span] = []
        self.losses = 0
        self.was_stopped = False

    def stream(self, interrupted: Event) -> Iterator[tuple[int, ...]]:
        """Tokens as they are committed; ends early when interrupted, or closed.

        EngineError if a target's process dies; ValueError if the request was the cause.
        """
        for worker_group in self._targets:
            worker_group.generate(self._command)
        if self._draft is not None and self._draft.is_idle:
            self._draft.generate(replace(self._command, alone=False))
        try:
            while any(worker_group.is_running for worker_group in self._targets) and not interrupted.is_set():
                yield from self._drain()
                self._mind_silence()
                time.sleep(_DRAIN_EVERY_S)
            if not interrupted.is_set():
                yield from self._until_draft_ends(_DRAFT_ENDS_WITHIN_S)
        except EngineError as failure:
            failure.tokens = tuple(self.tokens)
            raise
        except (
            BaseException
        ):  # closed, or an interrupt that was not held back: the next request needs idle worker groups
            with suppress(EngineError, ValueError):  # errors reported after a process has failed are not the cause
                for _ in self._stop():
                    pass  # nobody takes the tokens any more
            raise
        yield from self._stop()

    def _stop(self) -> Iterator[tuple[int, ...]]:
        """Tell the worker groups that still run to end, and wait for a limited time."""
        self.was_stopped = any(worker_group.is_running for worker_group in self._targets)
        # The draft, too: while it is busy with this request it would drop the next one's messages.
        worker_groups = [
            worker_group
            for worker_group in (*self._targets, self._draft)
            if worker_group is not None and self._is_at_it(worker_group)
        ]
        for worker_group in worker_groups:
            worker_group.stop()
        within_s = _STOP_WITHIN_S if self.was_stopped else _DRAFT_ENDS_WITHIN_S
        deadline_s = time.perf_counter() + within_s
        while any(map(self._is_at_it, worker_groups)) and time.perf_counter() < deadline_s:
            yield from self._drain()
            time.sleep(_DRAIN_EVERY_S)

    def _until_draft_ends(self, seconds: float) -> Iterator[tuple[int, ...]]:
        """Wait for the draft's end, which brings its spans; a frozen draft is not waited for."""
        deadline_s = time.perf_counter() + seconds
        while self._draft and self._is_at_it(self._draft) and time.perf_counter() < deadline_s:
            yield from self._drain()
            time.sleep(_DRAIN_EVERY_S)

    def _is_at_it(self, worker_group: WorkerGroup) -> bool:
        """Whether it is running this request, and not a stale one that it never finished."""
        return worker_group.is_running and worker_group.asked == self._command.number

    def _drain(self) -> Iterator[tuple[int, ...]]:
        for worker_group in self._targets:
            yield from self._take(worker_group.reports(), worker_group.role)
        if self._draft is not None:
            yield from self._attend(self._draft)

    def _mind_silence(self) -> None:
        """Log, once, that a target has been silent for a while."""
        seconds = self._silence.look()
        if self._has_warned or seconds < _STOPPED_AFTER_S:
            return
        here = [
            process.pid for worker_group in self._targets for process in worker_group.processes if process.node == 0
        ]
        stopped = [pid for pid in here if is_stopped(pid)]
        if stopped:
            why = f"process {stopped[0]} is stopped (kill -CONT {stopped[0]} lets it go on)"
        elif seconds > _SILENT_AFTER_S:
            why = "it computes, or hangs"
        else:
            return
        self._has_warned = True
        _log.warning("no token from the target for %.0f s: %s; waiting for it", seconds, why)

    def _attend(self, draft: WorkerGroup) -> Iterator[tuple[int, ...]]:
        yield from self._take(draft.reports_or_restart(), draft.role)
        wanted = self._can_rejoin and any(worker_group.is_running for worker_group in self._targets)
        if wanted and draft.is_idle and draft.asked != self._command.number:
            draft.generate(replace(self._command, alone=True))

    def _take(self, reports: Iterable[Committed | Finished], role: Role) -> Iterator[tuple[int, ...]]:
        for report in reports:
            if report.number != self._command.number:
                continue
            if role is Role.TARGET:
                self._silence.broken()
            if isinstance(report, Finished):
                self.spans += report.spans
                self.losses += report.losses if role is Role.TARGET else 0
            else:
                self.tokens += report.tokens
                yield report.tokens
