"""Drives role programs on fake models, in any interleaving and with any delays, and remembers every effect."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Generic, TypeVar, cast

from hypothesis import strategies as st

from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.base import sends_features
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
from tests.policies.fakes import FakeCache, Path, continued

E = TypeVar("E", bound=Effect, covariant=True)
Target = Callable[[Path], int]
Draft = Callable[[Path, int], Candidates]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of delays. Roles take turns of `bursts` effects; messages of either role take `delays` effects."""

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
    """One role's program, where it stands, and the caches it drives."""

    def __init__(
        self,
        role: Role,
        program: Program,
        known: Path,
        caches: Mapping[Role, FakeCache],
        *,
        rank: int,
        num_peers: int,
        keeps_first: bool,
    ) -> None:
        self.role, self.rank, self.caches, self.keeps_first = role, rank, caches, keeps_first
        self.program = program
        self.known = known
        self.inboxes = [deque[tuple[int, Message]]() for _ in range(num_peers)]  # (when it is there, message)
        self.pending: Receive | None = None  # one that found nothing yet
        self.halfway: tuple[Row, ...] = ()  # rows of an exit until it is finished
        self.answer: Any = None
        self.finished = False

    def has_message(self, peer: int, now: int) -> bool:
        return bool(self.inboxes[peer]) and self.inboxes[peer][0][0] <= now

    def can_run(self, now: int) -> bool:
        return not self.finished and (self.pending is None or self.has_message(self.pending.peer, now))


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
        self._processes = list(_processes(policy, request, forgetful=forgetful))
        self._bursts, self._delays = cycle(schedule.bursts), cycle(schedule.delays)
        self._now = 0
        self._events: list[Event[Effect]] = []

    def run(self) -> Run:
        turns = cycle(self._processes)
        while not all(process.finished for process in self._processes):
            process = next(turns)
            for _ in range(next(self._bursts)):
                if process.can_run(self._now):
                    self._step(process)
            if not any(process.can_run(self._now) for process in self._processes):
                self._wait_for_a_message()
        targets = [process for process in self._processes if process.role is Role.TARGET]
        for process in self._processes:
            # With several targets it is the draft that stops.
            stops = process.role is (Role.DRAFT if len(targets) > 1 else Role.TARGET)
            assert stops or not any(process.inboxes), "every verdict was read"
        return Run(events=tuple(self._events))

    def _wait_for_a_message(self) -> None:
        awaited = [process.inboxes[process.pending.peer] for process in self._processes if process.pending]
        arrivals = [inbox[0][0] for inbox in awaited if inbox]
        assert arrivals or not awaited, "deadlock: nobody can run and no message is on its way"
        self._now = max(self._now, min(arrivals, default=0))

    def _step(self, process: _Process) -> None:
        self._now += 1
        effect: Effect | None = process.pending
        if effect is None:
            try:
                effect = process.program.send(process.answer)
            except StopIteration:
                process.finished = True
                return
        message_waiting = any(process.has_message(peer, self._now) for peer in range(len(process.inboxes)))
        blocked = isinstance(effect, Receive) and not process.has_message(effect.peer, self._now)
        process.pending = effect if isinstance(effect, Receive) and blocked else None
        if process.pending is None:
            process.answer, paths = self._perform(process, effect)
            event = Event(
                role=process.role,
                effect=effect,
                answer=process.answer,
                message_waiting=message_waiting,
                paths=tuple(paths),
                known=process.known,
            )
            self._events.append(event)

    def _perform(self, process: _Process, effect: Effect) -> tuple[Any, Sequence[Path]]:
        caches = process.caches
        match effect:
            case Prefill(model, tokens, position):
                path = caches[model].prefill(tokens, position)
                return self._target(path) if model is Role.TARGET else None, ()
            case TargetForward(rows):
                paths = caches[Role.TARGET].forward(rows)
                return tuple(map(self._target, paths)), paths
            case TargetExit(rows, num_candidates):
                assert self._draft is not None
                process.halfway = rows
                paths = caches[Role.TARGET].paths(rows)
                return tuple(self._draft(path, num_candidates) for path in paths), paths
            case TargetFinish():
                rows, process.halfway = process.halfway, ()
                paths = caches[Role.TARGET].forward(rows)
                return tuple(map(self._target, paths)), paths
            case DraftForward(rows, num_candidates):
                assert self._draft is not None
                paths = caches[Role.DRAFT].forward(rows)
                return tuple(self._draft(path, num_candidates) for path in paths), paths
            case KeepKV(model, slots, num_verified):
                caches[model].keep(slots, num_verified, self._known(process, num_verified))
            case Send(message, peer):
                self._deliver(process, message, peer)
            case Receive(peer) | Poll(peer):
                return self._received(process, peer), ()
            case Commit(tokens):
                process.known += tokens
        return None, ()

    def _known(self, process: _Process, num_verified: int) -> Path:
        if not (process.keeps_first and process.role is Role.TARGET):
            return process.known
        length = len(process.caches[Role.TARGET].path) + num_verified + 1
        return continued(process.known, length, self._target)

    def _deliver(self, sender: _Process, message: Message, peer: int) -> None:
        others = [process for process in self._processes if process.role is not sender.role]
        inbox = others[peer].inboxes[sender.rank]
        arrival = self._now + next(self._delays)
        inbox.append((max(arrival, inbox[-1][0]) if inbox else arrival, message))

    def _received(self, process: _Process, peer: int) -> Message | None:
        if not process.has_message(peer, self._now):
            return None
        _, message = process.inboxes[peer].popleft()
        if isinstance(message, Verdict) and process.role is Role.DRAFT and len(process.inboxes) == 1:
            process.known += message.tokens
        elif isinstance(message, Subtree) and process.role is Role.TARGET and len(self._processes) > 2:
            # One of several targets: what it may keep is what the chain says it has in common with the last.
            seen = process.caches[Role.TARGET]
            process.known = tuple(slot.path[-1] for slot in (*seen.prefix, *seen.tree))[: message.position]
            process.known += message.tokens[:1]
        return message


def _processes(policy: Policy, request: Request, *, forgetful: bool) -> Iterator[_Process]:
    """The processes of one request, the targets first."""
    groups = policy.target_groups

    def cache(role: Role) -> FakeCache:
        if role is Role.TARGET:
            return FakeCache(policy.target_rows, forgetful=forgetful)
        return FakeCache(policy.draft_rows, forgetful=forgetful, rereads=sends_features(policy))

    def start(role: Role, held: Iterable[Role], *, rank: int, num_peers: int) -> _Process:
        program = policy.programs(request)[role]
        caches = {model: cache(model) for model in held}
        return _Process(
            role,
            program,
            request.prompt,
            caches,
            rank=rank,
            num_peers=num_peers,
            keeps_first=sends_features(policy),
        )

    if policy.layout is not Layout.DISAGGREGATED:
        yield start(Role.TARGET, Role, rank=0, num_peers=0)
        return
    for rank in range(groups):
        yield start(Role.TARGET, (Role.TARGET,), rank=rank, num_peers=1)
    yield start(Role.DRAFT, (Role.DRAFT,), rank=0, num_peers=groups)


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
