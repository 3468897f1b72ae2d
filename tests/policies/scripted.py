"""Drives role programs on fake models, in any interleaving and with any delays, and remembers every effect."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Generic, TypeVar, cast

from hypothesis import strategies as st

from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import (
    Candidates,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Message,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Send,
    Subtree,
    TargetExit,
    TargetFinish,
    TargetForward,
    Verdict,
)
from tests.policies.fakes import FakeCache, Path

E = TypeVar("E", bound=Effect, covariant=True)
Target = Callable[[Path], int]
Draft = Callable[[Path, int], Candidates]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Who is slow when. Roles take turns of `bursts` effects; messages take `delays` effects, whoever's they are."""

    bursts: tuple[int, ...] = (1,)
    delays: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Event(Generic[E]):
    """An effect and what became of it. `message_waiting`: whether one was there when the effect was asked for."""

    role: Role
    effect: E
    answer: Any
    message_waiting: bool
    paths: tuple[Path, ...]  # of a forward's rows
    known: Path  # prompt and verified tokens as this role knew them afterwards


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that happened, in order."""

    events: tuple[Event[Effect], ...]

    @property
    def output(self) -> Path:
        return tuple(token for event in self.of(Commit) for token in event.effect.tokens)

    def of(self, kind: type[E]) -> list[Event[E]]:
        return [cast(Event[E], event) for event in self.events if isinstance(event.effect, kind)]

    def by(self, role: Role) -> list[Event[Effect]]:
        """Events of one role's process."""
        return [event for event in self.events if event.role is role]


class _Process:
    """One role's program, where it stands."""

    def __init__(self, program: Program, known: Path) -> None:
        self.program = program
        self.known = known
        self.inbox: deque[tuple[int, Message]] = deque()  # (when it is there, message)
        self.pending: Effect | None = None  # a receive that found nothing yet
        self.answer: Any = None
        self.finished = False

    def has_message(self, now: int) -> bool:
        return bool(self.inbox) and self.inbox[0][0] <= now

    def can_run(self, now: int) -> bool:
        return not self.finished and (self.pending is None or self.has_message(now))


def drive(
    policy: Policy,
    request: Request,
    *,
    target: Target,
    draft: Draft | None,
    schedule: Schedule | None = None,
    forgetful: bool = False,
) -> Run:
    """Run a policy's programs to their ends; AssertionError if they block each other or break a rule.

    `forgetful`: the draft may throw KV away that could be of use. A target that has stopped may leave messages unread.
    """
    driver = _Driver(policy, request, target=target, draft=draft, schedule=schedule or Schedule(), forgetful=forgetful)
    return driver.run()


class _Driver:
    def __init__(
        self,
        policy: Policy,
        request: Request,
        *,
        target: Target,
        draft: Draft | None,
        schedule: Schedule,
        forgetful: bool,
    ) -> None:
        self._target, self._draft = target, draft
        self._caches = {
            Role.TARGET: FakeCache(policy.target_rows),
            Role.DRAFT: FakeCache(policy.draft_rows, forgetful=forgetful),
        }
        programs = policy.programs(request)
        self._processes = {role: _Process(program, request.prompt) for role, program in programs.items()}
        self._bursts, self._delays = cycle(schedule.bursts), cycle(schedule.delays)
        self._now = 0
        self._halfway: tuple[Row, ...] = ()  # rows of an exit until it is finished
        self._events: list[Event[Effect]] = []

    def run(self) -> Run:
        roles = cycle(self._processes)
        while not all(process.finished for process in self._processes.values()):
            role = next(roles)
            for _ in range(next(self._bursts)):
                if self._processes[role].can_run(self._now):
                    self._step(role)
            if not any(process.can_run(self._now) for process in self._processes.values()):
                self._wait_for_a_message()
        draft = self._processes.get(Role.DRAFT)
        assert draft is None or not draft.inbox, "every verdict was read"
        return Run(events=tuple(self._events))

    def _wait_for_a_message(self) -> None:
        waiting = [process for process in self._processes.values() if not process.finished]
        arrivals = [process.inbox[0][0] for process in waiting if process.inbox]
        assert arrivals or not waiting, "deadlock: nobody can run and no message is on its way"
        self._now = max(self._now, min(arrivals, default=0))

    def _step(self, role: Role) -> None:
        process = self._processes[role]
        self._now += 1
        effect = process.pending
        if effect is None:
            try:
                effect = process.program.send(process.answer)
            except StopIteration:
                process.finished = True
                return
        message_waiting = process.has_message(self._now)
        process.pending = effect if isinstance(effect, Receive) and not message_waiting else None
        if process.pending is None:
            process.answer, paths = self._perform(role, effect)
            event = Event(
                role=role,
                effect=effect,
                answer=process.answer,
                message_waiting=message_waiting,
                paths=tuple(paths),
                known=process.known,
            )
            self._events.append(event)

    def _perform(self, role: Role, effect: Effect) -> tuple[Any, Sequence[Path]]:
        process, caches = self._processes[role], self._caches
        match effect:
            case Prefill(model, tokens):
                caches[model].prefill(tokens)
                return self._target(tokens) if model is Role.TARGET else None, ()
            case TargetForward(rows):
                paths = caches[Role.TARGET].forward(rows)
                return tuple(map(self._target, paths)), paths
            case TargetExit(rows, num_candidates):
                assert self._draft is not None
                self._halfway = rows
                paths = caches[Role.TARGET].paths(rows)
                return tuple(self._draft(path, num_candidates) for path in paths), paths
            case TargetFinish():
                rows, self._halfway = self._halfway, ()
                paths = caches[Role.TARGET].forward(rows)
                return tuple(map(self._target, paths)), paths
            case DraftForward(rows, num_candidates):
                assert self._draft is not None
                paths = caches[Role.DRAFT].forward(rows)
                return tuple(self._draft(path, num_candidates) for path in paths), paths
            case KeepKV(model, slots, num_verified):
                caches[model].keep(slots, num_verified, process.known)
            case Send(message):
                self._deliver(role, message)
            case Receive() | Poll():
                return self._received(process), ()
            case Commit(tokens):
                process.known += tokens
        return None, ()

    def _deliver(self, sender: Role, message: Message) -> None:
        inbox = self._processes[Role.DRAFT if sender is Role.TARGET else Role.TARGET].inbox
        arrival = self._now + next(self._delays)
        inbox.append((max(arrival, inbox[-1][0]) if inbox else arrival, message))

    def _received(self, process: _Process) -> Message | None:
        if not process.has_message(self._now):
            return None
        _, message = process.inbox.popleft()
        if isinstance(message, Verdict):
            process.known += message.tokens
        return message


def run_alone(
    program: Program,
    *,
    messages: Sequence[Message | None] = (),
    draft: Callable[[Row], Candidates] | None = None,
    target: Callable[[Row], int] | None = None,
    choice: int | None = None,
) -> Iterator[Effect]:
    """Effects of one program whose peer is the list of `messages`; None is a poll that finds nothing.

    Ends when the list is used up, or with the program. `draft` and `target` answer a forward row by row, `choice` a
    prefill.
    """
    incoming = iter(messages)
    answer: Any = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration:
            return
        yield effect
        answer = None
        if isinstance(effect, DraftForward):
            assert draft is not None
            answer = tuple(map(draft, effect.rows))
        elif isinstance(effect, TargetForward):
            assert target is not None
            answer = tuple(map(target, effect.rows))
        elif isinstance(effect, Prefill):
            answer = choice
        elif isinstance(effect, Receive | Poll):
            try:
                answer = next(incoming)
            except StopIteration:
                return


def subtree_paths(subtree: Message, known: Path) -> list[Path]:
    """Paths of a message's nodes; `known` ends with its root."""
    assert isinstance(subtree, Subtree)
    assert subtree.position == len(known) - 1
    assert subtree.tokens[0] == known[-1]
    assert subtree.parents[0] == -1
    paths = [known]
    for index in range(1, len(subtree.tokens)):
        assert 0 <= subtree.parents[index] < index, "connected, parents first"
        paths.append((*paths[subtree.parents[index]], subtree.tokens[index]))
    assert len(set(paths)) == len(paths)
    return paths


def scores_below(root: Path, forwards: Iterable[Event[DraftForward]]) -> dict[Path, float]:
    """Every node of the tree under `root` with its cumulative log-prob, from all forwards so far."""
    answers = {path: answer for event in forwards for path, answer in zip(event.paths, event.answer, strict=True)}
    scores = {root: 0.0}
    waiting = [root]
    while waiting:
        path = waiting.pop()
        for token, logprob in zip(*answers.get(path, ((), ())), strict=True):
            scores[(*path, token)] = scores[path] + logprob
            waiting.append((*path, token))
    return scores


def assert_best(paths: Sequence[Path], scores: Mapping[Path, float], *, num_rows: int) -> None:
    """The paths are the `num_rows` best of all (any of them where scores tie)."""
    best = sorted(scores.values(), reverse=True)[:num_rows]
    assert sorted((scores[path] for path in paths), reverse=True) == best


def schedules() -> st.SearchStrategy[Schedule]:
    """Any interleaving of the roles, and messages late by any number of effects."""
    return st.builds(
        Schedule,
        bursts=st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple),
        delays=st.lists(st.integers(0, 15), min_size=1, max_size=6).map(tuple),
    )
