"""A target and a draft that lose messages, and each other, in any way: programs of `recovery` on fake models.

Time passes in ticks: an effect takes one, a wait as many as it takes. Messages are numbered as the engine's are.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from hypothesis import strategies as st

from swiftspec.engine.channel.sequencing import Exchange, Header
from swiftspec.policies import Policy, Request, make_policy
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import (
    CatchUp,
    Clock,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Message,
    Poll,
    Prefill,
    Probe,
    ProbeReply,
    Receive,
    Role,
    Row,
    Send,
    Stop,
    Subtree,
    TargetExit,
    TargetFinish,
    TargetForward,
    Verdict,
)
from swiftspec.policies.recovery import Recoverable, RecoveringDraft, RecoveringTarget, ServedDraft
from tests.policies.fakes import VOCAB_SIZE, FakeCache, FakeDraft, Path, continued

TICK_S = 0.01
_MOST_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Of one message. `instead`: another one comes in its place, numbered as it was."""

    lost: bool = False
    delay: int = 0
    copies: int = 1
    instead: Message | None = None


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The draft is away for some ticks, starting at a given one; it comes back with or without its memory."""

    start: int
    ticks: int
    forgets: bool


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Faults to inject. They are repeated over and over, but those of the draft only up to `until`."""

    to_target: tuple[Fate, ...] = (Fate(),)
    to_draft: tuple[Fate, ...] = (Fate(),)
    until: int = 10**9
    outages: tuple[Outage, ...] = ()
    bursts: tuple[int, ...] = (1,)
    alone: bool = False  # the target is told that there is no draft yet
    served: bool = False  # the draft is that of another engine's target: it is told the text, and alone at first
    patience: int = 40


@dataclass(kw_only=True)
class Process:
    """One role's program, its cache, its end of the channel."""

    role: Role
    part: Recoverable
    cache: FakeCache
    known: Path
    exchange: Exchange
    inbox: deque[tuple[int, Header, Message]] = field(default_factory=deque)
    pending: tuple[Receive, int | None] | None = None  # and the tick at which it gives up
    answer: Any = None
    halfway: tuple[Row, ...] = ()
    finished: bool = False

    def __post_init__(self) -> None:
        self.program = self.part.run()

    def look(self, now: int) -> Message | None:
        while self.inbox and self.inbox[0][0] <= now:
            _, header, message = self.inbox.popleft()
            if self.exchange.admits(header, message):
                return message
        return None


@dataclass(frozen=True, kw_only=True)
class Moment:
    """An effect of the target's, when it was done, and whether it was alone."""

    tick: int
    effect: Effect
    answer: Any
    alone: bool
    waited: int = 0


class World:
    """Two processes and what is between them."""

    def __init__(self, policy: Policy, request: Request, draft: FakeDraft, faults: Faults, fallback: Policy) -> None:
        self.policy, self.request, self.faults, self.model = policy, request, faults, draft
        self.now = 0
        self.output: Path = ()
        self.moments: list[Moment] = []
        self.target_part = RecoveringTarget(
            policy,
            request,
            fallback=fallback,
            patience_s=lambda: faults.patience * TICK_S,
            alone=self._begins_alone,
            first_answer_s=TICK_S if faults.served else 0.0,
        )
        rows = max(policy.target_rows, fallback.target_rows)
        self.target = self._process(Role.TARGET, self.target_part, rows)
        self.draft: Process | None = self._draft(restarted=self._begins_alone)
        self._fates = {Role.TARGET: cycle(faults.to_target), Role.DRAFT: cycle(faults.to_draft)}
        self._outages = deque(sorted(faults.outages, key=lambda outage: outage.start))
        self._frozen_until = 0
        self._restart_at: int | None = None
        self._waiting_since = 0

    @property
    def _begins_alone(self) -> bool:
        return self.faults.alone or self.faults.served

    def _process(self, role: Role, part: Recoverable, tree_slots: int) -> Process:
        return Process(
            role=role,
            part=part,
            cache=FakeCache(tree_slots, forgetful=True, rereads=sends_features(self.policy)),
            known=self.request.prompt,
            exchange=Exchange(0, leads=role is Role.TARGET),
        )

    def _draft(self, *, restarted: bool) -> Process:
        if not self.faults.served or sends_features(self.policy):
            part = RecoveringDraft(self.policy, self.request, restarted=restarted)
            return self._process(Role.DRAFT, part, self.policy.draft_rows)
        most = len(self.request.prompt) + self.request.max_new_tokens
        served = ServedDraft(self.policy, max_tokens=most, mask_token=self.request.mask_token)
        return replace(self._process(Role.DRAFT, served, self.policy.draft_rows), known=())

    def run(self) -> "World":
        """Until the target has finished."""
        bursts = cycle(self.faults.bursts)
        for _ in range(_MOST_STEPS):
            self._break_and_mend()
            before = self.now
            for process in (self.target, self.draft):
                for _ in range(next(bursts)):
                    if process and not process.finished and (process.role is Role.TARGET or not self._is_frozen):
                        self._step(process)
            if self.target.finished:
                return self
            if self.now == before:
                self.now += 1  # both wait
        raise AssertionError("deadlock, or no progress")

    @property
    def _is_frozen(self) -> bool:
        return self.now < self._frozen_until

    def _break_and_mend(self) -> None:
        if self._restart_at is not None and self.now >= self._restart_at:
            self.draft, self._restart_at = self._draft(restarted=True), None
        if self._outages and self.now >= self._outages[0].start:
            outage = self._outages.popleft()
            if outage.forgets:
                self.draft, self._restart_at = None, self.now + outage.ticks
            else:
                self._frozen_until = self.now + outage.ticks

    def _step(self, process: Process) -> None:
        if process.pending:
            effect, gives_up = process.pending
            message = process.look(self.now)
            if message is None and (gives_up is None or self.now < gives_up):
                return
            process.pending = None
            self._answer(process, effect, self._heard(process, message))
            return
        self.now += 1
        try:
            asked = process.program.send(process.answer)
        except StopIteration:
            process.finished = True
            return
        if isinstance(asked, Receive):
            ticks = None if asked.within_s is None else round(asked.within_s / TICK_S)
            process.pending = asked, None if ticks is None else self.now + ticks
            if process.role is Role.TARGET:
                self._waiting_since = self.now
        else:
            self._answer(process, asked, self._perform(process, asked))

    def _answer(self, process: Process, effect: Effect, answer: Any) -> None:
        process.answer = answer
        if process.role is Role.TARGET:
            waited = self.now - self._waiting_since if isinstance(effect, Receive) else 0
            alone = self.target_part.lost
            self.moments.append(Moment(tick=self.now, effect=effect, answer=answer, alone=alone, waited=waited))

    def _perform(self, process: Process, effect: Effect) -> Any:
        match effect:
            case KeepKV(_, slots, num_verified):
                known = process.known
                if process.role is Role.TARGET and sends_features(self.policy):
                    known = continued(known, len(process.cache.path) + num_verified + 1, self.model.target)
                process.cache.keep(slots, num_verified, known)
            case Send(message):
                self._send(process, message)
            case Poll():
                return self._heard(process, process.look(self.now))
            case Clock():
                return self.now * TICK_S
            case Commit(tokens):
                process.known += tokens
                self.output += tokens
            case _:
                return self._forward(process, effect)
        return None

    def _forward(self, process: Process, effect: Effect) -> Any:
        cache, target, draft = process.cache, self.model.target, self.model
        match effect:
            case Prefill(role, tokens, position):
                path = cache.prefill(tokens, position)
                return target(path) if role is Role.TARGET else None
            case TargetForward(rows):
                return tuple(map(target, cache.forward(rows)))
            case TargetExit(rows, num_candidates):
                process.halfway = rows
                return tuple(draft(path, num_candidates) for path in cache.paths(rows))
            case TargetFinish():
                return tuple(map(target, cache.forward(process.halfway)))
            case DraftForward(rows, num_candidates):
                return tuple(draft(path, num_candidates) for path in cache.forward(rows))
        raise AssertionError(f"no such effect: {effect!r}")

    def _send(self, sender: Process, message: Message) -> None:
        header = sender.exchange.header(message)
        receiver = self.draft if sender.role is Role.TARGET else self.target
        fate = next(self._fates[Role.DRAFT if sender.role is Role.TARGET else Role.TARGET])
        if self.now >= self.faults.until:
            fate = Fate()
        if receiver is None or fate.lost:
            return
        arrival = self.now + fate.delay
        if receiver.inbox:
            arrival = max(arrival, receiver.inbox[-1][0])
        receiver.inbox.extend([(arrival, header, fate.instead or message)] * fate.copies)

    def _heard(self, process: Process, message: Message | None) -> Message | None:
        if process.role is Role.DRAFT:
            if isinstance(message, Verdict):
                process.known += message.tokens
            elif isinstance(message, CatchUp) and message.position <= len(process.known):
                process.known = process.known[: message.position] + message.tokens
        return message


SHAPES: dict[str, dict[str, Any]] = {
    "swiftspec_chain": {"num_draft_tokens": 3, "expand_rows": 2, "num_candidates": 3, "tree_capacity": 12},
    "swiftspec": {"verify_rows": 4, "expand_rows": 2, "num_candidates": 3, "tree_capacity": 12},
    "swiftspec_parallel": {
        "verify_rows": 4,
        "expand_nodes": 2,
        "num_masks": 2,
        "num_candidates": 3,
        "tree_capacity": 12,
    },
    "minedraft": {"num_draft_tokens": 3},
    "pearl": {"num_draft_tokens": 3},
    "specbranch": {"num_draft_tokens": 3, "branches": 2},
    "amusd": {"lookahead": 2, "verify_rows": 6},
    "mirror": {"num_draft_tokens": 2, "guesses": 2},
    "ssd": {"num_draft_tokens": 2, "branches": 4},
    "ssd_head": {"num_draft_tokens": 2, "branches": 4},
}


def small(name: str) -> Policy:
    """Many rounds in few tokens."""
    return make_policy(name, **SHAPES[name])


def nonsense() -> st.SearchStrategy[Message]:
    """Any message that can be written down; the tokens are in the vocabulary, as the channel sees to."""
    tokens = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=9).map(tuple)
    numbers = st.integers(0, 60)
    return st.one_of(
        st.builds(Subtree, numbers, tokens, st.lists(st.integers(-1, 9), max_size=9).map(tuple)),
        st.builds(_chain, numbers, tokens),
        st.builds(Verdict, tokens),
        st.builds(ProbeReply, numbers),
        st.builds(CatchUp, numbers, tokens, st.booleans()),
        st.just(Stop()),
        st.just(Probe()),
    )


def _chain(position: int, tokens: Sequence[int]) -> Subtree:
    return Subtree(position, tuple(tokens), tuple(range(-1, len(tokens) - 1)))


def fates(*, nonsense_too: bool) -> st.SearchStrategy[tuple[Fate, ...]]:
    """Mostly good ones."""
    fate = st.one_of(
        st.just(Fate()),
        st.just(Fate()),
        st.builds(Fate, delay=st.integers(0, 30)),
        st.builds(Fate, delay=st.integers(0, 150), copies=st.integers(1, 3)),
        st.builds(Fate, lost=st.booleans()),
        *([st.builds(Fate, instead=nonsense())] if nonsense_too else []),
    )
    return st.lists(fate, min_size=1, max_size=12).map(tuple)


def faults(*, until: int = 10**9) -> st.SearchStrategy[Faults]:
    """Any of them, messages up to some tick before `until`."""
    outage = st.builds(Outage, start=st.integers(0, 300), ticks=st.integers(1, 200), forgets=st.booleans())
    return st.builds(
        Faults,
        to_target=fates(nonsense_too=True),
        to_draft=fates(nonsense_too=False),
        until=st.integers(0, until),
        outages=st.lists(outage, max_size=3).map(tuple),
        bursts=st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
        alone=st.booleans(),
        served=st.booleans(),
        patience=st.integers(1, 60),
    )
