"""One request of the engine, from its submission to its end, and the replica that serves it."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from queue import Empty, Queue

from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.protocol import Generate, ScoreReport
from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.engine.requests import Task
from swiftspec.errors import EngineError
from swiftspec.files.reading import brief
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Candidates
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.routing import Replicas, Router
from swiftspec.timing.timeline import Span, Timeline

_INTERRUPTED_WITHIN_S = 0.05
_log = logging.getLogger("swiftspec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request's output.

    interrupted: Ctrl-C, or the consumer of the tokens, ended it early.
    losses: how often the target had to continue without its draft.
    preemptions: how often it gave its place to others, because the cache was full.
    begun_s: when it was admitted, on the clock of its timeline.
    rows_asked: rows that its policy wanted to verify; a full step grants fewer.
    alone_s: seconds without the draft that it should have had.
    seed: seed by which its tokens were drawn, unless it was greedy.
    log_probs: log-probs of the tokens, if they were wanted; or of a prompt that was scored, from its second token on.
    candidates: the likeliest tokens in the place of each of these, if they were wanted.
    """

    tokens: tuple[int, ...]
    timeline: Timeline
    interrupted: bool
    losses: int
    preemptions: int = 0
    begun_s: float = 0.0
    rows_asked: int = 0
    alone_s: float = 0.0
    seed: int = 0
    log_probs: tuple[float, ...] = ()
    candidates: tuple[Candidates, ...] = ()


Commits = tuple[tuple[int, ...], ...]  # tokens of each, in order
RequestEvent = Commits | Generation | Exception  # what was committed since the last one; the end, good or bad
Deliver = Callable[[RequestEvent], None]
# Not a `SimpleQueue`: in CPython 3.11 its `get` waits forever if a signal's handler returns after the deadline.
Events = Queue[RequestEvent]


class Ending(Enum):
    """Why programs of a request are ended before they end by themselves."""

    CANCELLED = auto()
    PREEMPTED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """A target's groups, the requests that wait for them or run there, and who drafts for these.

    targets: as many as a policy needs for a request. drafts: none if no separate process drafts.
    """

    targets: Sequence[WorkerGroup]
    drafts: Sequence[WorkerGroup]
    queue: AdmissionQueue
    router: Router

    @property
    def num_requests(self) -> int:
        return self.queue.num_running + self.queue.num_waiting

    def next_draft(self) -> WorkerGroup | None:
        """The draft of the next request: of those that can take one, that with the fewest; None if there are none."""
        if not self.drafts:
            return None
        counts = [draft.num_open if draft.has_room else sys.maxsize for draft in self.drafts]
        return self.drafts[self.router.choose(counts)]


def replicas_of(
    targets: Sequence[WorkerGroup], drafts: Sequence[WorkerGroup], replicas: Replicas, admission: AdmissionLimits
) -> Iterator[Replica]:
    """Replicas with equal shares of the targets, each with a queue of its own, and with all drafts or its own."""
    size, router = len(targets) // replicas.num_targets, Router("least-loaded")
    for number in range(replicas.num_targets):
        yield Replica(
            targets=targets[number * size : (number + 1) * size],
            drafts=drafts if replicas.num_drafts else drafts[number : number + 1],
            queue=AdmissionQueue(admission),
            router=router,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class RunningRequest:
    """A request, and where it stands.

    policy: the fallback, after several targets have lost the draft that leads them. deliver:
    takes its events, in the dispatcher's thread.

    key: place in the order of submission. start_s, begun_s: when it was submitted, and first admitted.
    draft: that drafts for its present programs, as soon as it can; None if they need none.
    command: what its present programs were begun with; None while it waits.
    targets_left: whose programs run. ending: why they are being ended. deadline_s: when the wait for that is given up.
    is_due: whether it begins again as soon as its programs have ended.
    unheard: commits that have not been delivered. failure: what ends it, if it is its own.
    scores: log-probs, if they are wanted; those of tokens are there before the tokens are delivered.
    """

    task: Task
    policy: Policy
    sampler: Sampler
    deliver: Deliver
    key: int = -1
    start_s: float = field(default_factory=time.perf_counter)
    replica: Replica | None = None
    draft: WorkerGroup | None = None
    command: Generate | None = None
    targets_left: set[WorkerGroup] = field(default_factory=set)
    ending: Ending | None = None
    deadline_s: float | None = None
    is_due: bool = False
    tokens: list[int] = field(default_factory=list)
    unheard: list[tuple[int, ...]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    losses: int = 0
    preemptions: int = 0
    rows_asked: int = 0
    alone_s: float = 0.0
    begun_s: float | None = None
    failure: Exception | None = None
    scores: list[ScoreReport] = field(default_factory=list)

    def begin(self, command: Generate, targets: Sequence[WorkerGroup], draft: WorkerGroup | None = None) -> None:
        """Note that its programs are begun, perhaps not for the first time."""
        self.draft = draft
        self.command, self.is_due, self.deadline_s, self.ending = command, False, None, None
        self.targets_left = set(targets)
        if not self.tokens:  # what is told of tokens that are out stays
            self.scores.clear()
        if self.begun_s is None:
            self.begun_s = time.perf_counter()

    @property
    def draft_command(self) -> Generate:
        """What its draft's program is begun with."""
        assert self.command is not None
        return replace(self.command, peers=tuple(sorted(target.group for target in self.targets_left)))

    @property
    def num_tokens(self) -> int:
        return len(self.task.request.prompt) + len(self.tokens)

    @property
    def is_complete(self) -> bool:
        """Whether its output has ended by itself."""
        return self.task.request.clip(self.tokens, num_generated=0)[1]

    @property
    def rest(self) -> Request:
        """The request that continues it."""
        return self.task.request.rest((*self.task.request.prompt, *self.tokens))

    def deliver_commits(self) -> None:
        """Deliver what was committed since the last time, at once: whoever hears of it wakes once."""
        if self.unheard:
            commits = tuple(self.unheard)
            self.unheard.clear()
            self.tell(commits)

    def tell(self, event: RequestEvent) -> None:
        """Deliver an event. An error of whoever takes it is this request's failure."""
        try:
            self.deliver(event)
        except Exception as error:  # noqa: BLE001 - the dispatcher serves the others, whatever one of them does
            _log.exception("request %s: what came of it could not be delivered", self.task.prompt_id)
            self.failure = EngineError(f"the output could not be delivered ({type(error).__name__}: {brief(error)})")

    def fail(self, error: Exception) -> None:
        """Deliver an exception of its own: ValueError if its input was at fault, EngineError with its tokens."""
        if isinstance(error, ValueError):
            error = ValueError(str(error))
        elif isinstance(error, EngineError):
            error = EngineError(str(error))
            error.tokens = tuple(self.tokens)
        self.tell(error)

    def generation(self, *, interrupted: bool) -> Generation:
        return Generation(
            tokens=tuple(self.tokens),
            timeline=Timeline(request=self.task.prompt_id, start_s=self.start_s, spans=tuple(self.spans)),
            interrupted=interrupted,
            losses=self.losses,
            preemptions=self.preemptions,
            rows_asked=self.rows_asked,
            alone_s=self.alone_s,
            seed=self.sampler.seed,
            begun_s=self.start_s if self.begun_s is None else self.begun_s,
            log_probs=tuple(each for report in self.scores for each in report.log_probs),
            candidates=tuple(each for report in self.scores for each in report.candidates),
        )


def next_event(events: Events, interrupted: threading.Event | None) -> RequestEvent | None:
    """A request's next event; None once it is interrupted."""
    if interrupted is None:
        return events.get()
    while not interrupted.is_set():
        with suppress(Empty):
            return events.get(timeout=_INTERRUPTED_WITHIN_S)
    return None
