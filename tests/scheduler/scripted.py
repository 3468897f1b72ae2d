"""Serves many requests on fake models through the scheduler's groups, in any interleaving, with any disturbance."""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import (
    Clock,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Message,
    Poll,
    Prefill,
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
from swiftspec.policies.steered import steered_programs
from swiftspec.scheduler.asks import Grant, Step
from swiftspec.scheduler.batching import BatchLimits, WaitUntil
from swiftspec.scheduler.controller import Controller
from swiftspec.scheduler.group import Group
from tests.policies.fakes import FakeCache, FakeDraft, Path, continued


@dataclass(slots=True, kw_only=True)
class Served:
    """A request and its output so far. is_cancelled: it was stopped for good."""

    request: Request
    output: Path = ()
    is_done: bool = False
    is_cancelled: bool = False


class _Part:
    """A program's caches and inboxes on one group."""

    def __init__(self, policy: Policy, role: Role, known: Path, held: Sequence[Role], num_peers: int) -> None:
        self.role = role
        self.known = known
        # Forgetful: some policies throw away what they could use (see their own tests).
        self.caches = {
            model: FakeCache(
                policy.target_rows if model is Role.TARGET else policy.draft_rows,
                forgetful=True,
                rereads=sends_features(policy),
            )
            for model in held
        }
        self.inboxes = [deque[Message]() for _ in range(num_peers)]
        self.peers: list[tuple[_Part, int]] = []
        self.halfway: tuple[Row, ...] = ()
        self.num_targets = 1


class _Place:
    """A device group with the parts of the programs that run there."""

    def __init__(self, role: Role, rank: int, limits: BatchLimits, controller: Controller | None) -> None:
        self.role, self.rank = role, rank
        self.group = Group(limits, controller)
        self.parts: dict[int, _Part] = {}


def serve(
    policy: Policy,
    requests: Sequence[Request],
    *,
    draft: FakeDraft,
    rng: random.Random,
    max_running: int,
    control: Callable[[int], Controller] | None = None,
) -> list[Served]:
    """Serve all requests, with joins, partial grants, preemptions and cancellations at random.

    control: makes the controller of a group, whose steps have so many rows.
    """
    return _Service(policy, requests, draft=draft, rng=rng, max_running=max_running, control=control).run()


class _Service:
    def __init__(
        self,
        policy: Policy,
        requests: Sequence[Request],
        *,
        draft: FakeDraft,
        rng: random.Random,
        max_running: int,
        control: Callable[[int], Controller] | None,
    ) -> None:
        self._control = control
        self._policy, self._draft, self._rng = policy, draft, rng
        self._max_running = max_running
        self._served = [Served(request=request) for request in requests]
        self._waiting = deque(range(len(requests)))
        self._running: dict[int, int] = {}  # program -> request
        self._numbers = count()
        self._now_s = 0.0
        self._places = list(self._make_places())
        self._leader = self._places[-1 if policy.target_groups > 1 else 0]

    def _make_places(self) -> Iterator[_Place]:
        def limits() -> BatchLimits:
            rng = self._rng
            return BatchLimits(
                max_rows=rng.choice((1, 4, 16, 64)),
                prefill_rows=rng.choice((1, 2, 100)),
                max_overtaken=rng.choice((1, 3, 32)),
                gather_s=rng.choice((0.0, 3.0)),
            )

        def place(role: Role, rank: int) -> _Place:
            asked = limits()
            return _Place(role, rank, asked, self._control(asked.max_rows) if self._control else None)

        if self._policy.layout is not Layout.DISAGGREGATED:
            yield place(Role.TARGET, 0)
            return
        for rank in range(self._policy.target_groups):
            yield place(Role.TARGET, rank)
        yield place(Role.DRAFT, 0)

    def run(self) -> list[Served]:
        for _ in range(100_000):
            if not self._waiting and not self._running:
                return self._served
            if self._waiting and len(self._running) < self._max_running and self._rng.random() < 0.5:
                self._begin(self._waiting.popleft())
            self._now_s += 1.0
            self._turn(self._rng.choice(self._places))
            if self._running and self._rng.random() < 0.01:
                self._disturb(self._rng.choice(list(self._running)))
        raise AssertionError("deadlock: requests are left and nothing happens")

    def _begin(self, number: int) -> None:
        served, policy = self._served[number], self._policy
        request = served.request
        rest = replace(
            request,
            prompt=(*request.prompt, *served.output),
            max_new_tokens=request.max_new_tokens - len(served.output),
        )
        program = next(self._numbers)
        self._running[program] = number
        parts = []
        *targets, draft = self._places
        for place in self._places:
            held = [place.role] if targets else list(Role)
            num_peers = len(targets) if place is draft else 1
            parts.append(_Part(policy, place.role, rest.prompt, held, num_peers if targets else 0))
        for rank in range(len(targets)):
            parts[rank].peers.append((parts[-1], rank))
            parts[rank].num_targets = len(targets)
            parts[-1].peers.append((parts[rank], 0))
        for place, part in zip(self._places, parts, strict=True):
            place.parts[program] = part
            programs = steered_programs(policy, rest) if self._control else policy.programs(rest)
            place.group.add(program, programs[place.role], is_elastic=policy.elastic)

    def _disturb(self, program: int) -> None:
        """Preempt a request, which begins again, or cancel it."""
        number = self._running.pop(program)
        for place in self._places:
            place.group.remove(program)
            place.parts.pop(program, None)
        if self._rng.random() < 0.5:
            self._waiting.appendleft(number)
        else:
            self._served[number].is_cancelled = True

    def _turn(self, place: _Place) -> None:
        group = place.group
        for program, effect in list(group.receiving.items()):
            if place.parts[program].inboxes[effect.peer]:
                group.unblock(program, self._take(place.parts[program], effect.peer))
        for program, answer in group.ready():
            self._proceed(place, program, answer)
        choice = group.choose(self._now_s)
        if isinstance(choice, Step):
            self._compute(place, self._cut(place, choice))
        elif isinstance(choice, WaitUntil):
            assert choice.time_s > self._now_s

    def _proceed(self, place: _Place, program: int, answer: Any) -> None:
        part = place.parts[program]
        while (effect := place.group.resume(program, answer, now_s=self._now_s)) is not None:
            if isinstance(effect, Receive) and not part.inboxes[effect.peer]:
                place.group.block(program, effect)
                return
            answer = self._perform(part, program, effect)
        if program not in place.group:
            del place.parts[program]
            if place is self._leader:
                self._served[self._running.pop(program)].is_done = True

    def _cut(self, place: _Place, step: Step) -> Step:
        """Any first rows of elastic verifications."""
        effects = dict(place.group.begin(step, now_s=self._now_s))
        grants = []
        for grant in step.grants:
            is_cut = self._policy.elastic and isinstance(effects[grant.request], TargetForward)
            rows = self._rng.randint(1, grant.num_rows) if is_cut else grant.num_rows
            grants.append(Grant(grant.request, rows))
        return replace(step, grants=tuple(grants))

    def _compute(self, place: _Place, step: Step) -> None:
        begun = place.group.begin(step, now_s=self._now_s)
        answers = {program: self._forward(place.parts[program], effect) for program, effect in begun}
        place.group.finish(step, answers)

    def _forward(self, part: _Part, effect: Effect) -> Any:
        target, draft, caches = self._draft.target, self._draft, part.caches
        match effect:
            case Prefill(model, tokens, position):
                path = caches[model].prefill(tokens, position)
                return target(path) if model is Role.TARGET else None
            case TargetForward(rows):
                return tuple(map(target, caches[Role.TARGET].forward(rows)))
            case TargetExit(rows, num_candidates):
                part.halfway = rows
                return tuple(draft(path, num_candidates) for path in caches[Role.TARGET].paths(rows))
            case TargetFinish():
                return tuple(map(target, caches[Role.TARGET].forward(part.halfway)))
            case DraftForward(rows, num_candidates):
                return tuple(draft(path, num_candidates) for path in caches[Role.DRAFT].forward(rows))
        raise AssertionError(effect)

    def _perform(self, part: _Part, program: int, effect: Effect) -> Any:
        match effect:
            case KeepKV(model, slots, num_verified):
                known = part.known
                if part.role is Role.TARGET and sends_features(self._policy):
                    known = continued(known, len(part.caches[model].path) + num_verified + 1, self._draft.target)
                part.caches[model].keep(slots, num_verified, known)
            case Send(message, peer):
                other, inbox = part.peers[peer]
                other.inboxes[inbox].append(message)
            case Receive(peer):
                return self._take(part, peer)
            case Poll(peer):
                return self._take(part, peer) if part.inboxes[peer] and self._rng.random() < 0.7 else None
            case Commit(tokens):
                part.known += tokens
                self._served[self._running[program]].output += tokens
            case Clock():
                return self._now_s
        return None

    def _take(self, part: _Part, peer: int) -> Message:
        message = part.inboxes[peer].popleft()
        if isinstance(message, Verdict) and part.role is Role.DRAFT and len(part.inboxes) == 1:
            part.known += message.tokens
        elif isinstance(message, Subtree) and part.role is Role.TARGET and part.num_targets > 1:
            # One of several targets: what it may keep is what the chain says it has in common with the last.
            seen = part.caches[Role.TARGET]
            part.known = tuple(slot.path[-1] for slot in (*seen.prefix, *seen.tree))[: message.position]
            part.known += message.tokens[:1]
        return message
