"""The engine's driver: executes a role program's effects with real models and a real channel, and times each."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from swiftspec.artifacts.timeline import Phase, Span
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Rows
from swiftspec.engine.model.protocol import Model
from swiftspec.engine.model.rejection_sampler import RejectionSampler
from swiftspec.engine.model.sampler import Sampler
from swiftspec.policies.effects import (
    Clock,
    Commit,
    DraftForward,
    Effect,
    ForwardKind,
    KeepKV,
    Message,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Send,
    TargetExit,
    TargetFinish,
    TargetForward,
)

__all__ = ["Channel", "Driver"]

_SEQUENCE = 0  # of the one request


class Channel(Protocol):
    """Messages to and from one peer, as the driver sees them."""

    def send(self, message: Message) -> None:
        """Send without waiting for the peer."""

    def receive(self, within_s: float | None) -> Message | None:
        """The next message; None if none came in time."""

    def poll(self) -> Message | None:
        """The next message, if one is there."""


class _Done(NamedTuple):
    """An effect's answer and the fields of its span; no span without a phase."""

    answer: Any
    phase: Phase | None
    model: Role
    rows: int = 0
    tokens: int = 0


class Driver:
    """Runs one program to its end.

    Parameters
    ----------
    role, group : Role, int
        Role of this process's program, and its target group, if there are several; spans carry both.
    models : mapping
        The models of this process, by role.
    channels : sequence of Channel
        One for every peer.
    commit : callable
        Takes committed tokens.
    interrupted : callable
        Called after each commit; when it returns true the program ends there.
    sampler : Sampler
        Draws the target's choices, and the draft's candidates if the policy needs their probabilities.
    """

    def __init__(
        self,
        *,
        role: Role,
        group: int = 0,
        models: Mapping[Role, Model],
        channels: Sequence[Channel],
        commit: Callable[[tuple[int, ...]], None],
        interrupted: Callable[[], bool],
        sampler: Sampler,
    ) -> None:
        self._role = role
        self._group = group
        self._models = models
        self._channels = channels
        self._commit = commit
        self._interrupted = interrupted
        self._sampler = sampler
        self._halfway: tuple[Row, ...] = ()  # rows of an exit until its finish
        self._residual = RejectionSampler(sampler) if sampler.needs_draft_probabilities else None
        self._perform: dict[type[Effect], Callable[[Any], _Done]] = {
            Prefill: self._prefill,
            DraftForward: self._draft_forward,
            TargetForward: self._target_forward,
            TargetExit: self._target_exit,
            TargetFinish: self._target_finish,
            KeepKV: self._keep_kv,
            Send: self._send,
            Receive: self._receive,
            Poll: self._poll,
            Clock: self._clock,
            Commit: self._commit_tokens,
        }

    def run(self, program: Program) -> list[Span]:
        """Every span of the program, in order; if it was told to stop, those so far."""
        for held in self._models.values():
            held.reset(_SEQUENCE)
        spans: list[Span] = []
        clock, perform, role, group = time.perf_counter, self._perform, self._role, self._group
        answer: Any = None
        try:
            while True:
                effect = program.send(answer)
                start_s = clock()
                answer, phase, model, rows, tokens = perform[type(effect)](effect)
                if phase is not None:
                    spans.append(Span(role, phase, model, rows, tokens, start_s, clock(), group))
                    if phase is Phase.COMMIT and self._interrupted():
                        return spans
        except (StopIteration, InterruptedError):
            return spans

    def _prefill(self, effect: Prefill) -> _Done:
        result = self._forward(effect.role, ForwardKind.EXACT, Chunk(_SEQUENCE, effect.tokens))
        if self._residual:
            self._residual.prefill(effect.role, effect.tokens)
        choice = None
        if effect.role is Role.TARGET:
            choice = self._sampler.choose(result.logits[0], [effect.position + len(effect.tokens) - 1])[0]
        return _Done(choice, Phase.PREFILL, effect.role, rows=len(effect.tokens))

    def _draft_forward(self, effect: DraftForward) -> _Done:
        kind = ForwardKind.LAYER_PARALLEL if effect.fuzzy else ForwardKind.EXACT
        rows, num_candidates = Rows(_SEQUENCE, effect.rows), effect.num_candidates
        if self._residual:
            logits = self._forward(Role.DRAFT, kind, rows).logits[0]
            candidates = self._residual.propose(effect.rows, logits, num_candidates)
        else:
            candidates = self._forward(Role.DRAFT, kind, rows, top_k=num_candidates).candidates[0]
        phase = Phase.FUZZY if effect.fuzzy else Phase.EXPAND
        return _Done(candidates, phase, Role.DRAFT, rows=len(effect.rows))

    def _target_forward(self, effect: TargetForward) -> _Done:
        logits = self._forward(Role.TARGET, ForwardKind.EXACT, Rows(_SEQUENCE, effect.rows)).logits[0]
        if self._residual:
            choices = self._residual.choose(effect.rows, logits)
        else:
            choices = tuple(self._sampler.choose(logits, [row.position for row in effect.rows]))
        return _Done(choices, Phase.VERIFY, Role.TARGET, rows=len(effect.rows))

    def _target_exit(self, effect: TargetExit) -> _Done:
        self._halfway = effect.rows
        rows = Rows(_SEQUENCE, effect.rows)
        result = self._forward(Role.TARGET, ForwardKind.FIRST_HALF, rows, top_k=effect.num_candidates)
        return _Done(result.candidates[0], Phase.EXIT, Role.TARGET, rows=len(effect.rows))

    def _target_finish(self, _: TargetFinish) -> _Done:
        rows = self._halfway
        logits = self._forward(Role.TARGET, ForwardKind.SECOND_HALF, Rows(_SEQUENCE, rows)).logits[0]
        choices = tuple(self._sampler.choose(logits, [row.position for row in rows]))
        return _Done(choices, Phase.FINISH, Role.TARGET, rows=len(rows))

    def _keep_kv(self, effect: KeepKV) -> _Done:
        self._models[effect.role].keep(_SEQUENCE, effect.slots, effect.num_verified)
        if self._residual:
            self._residual.keep(effect.role, effect.slots, effect.num_verified)
        return _Done(None, Phase.COMPACT, effect.role, rows=len(effect.slots))

    def _send(self, effect: Send) -> _Done:
        self._channels[effect.peer].send(effect.message)
        return _Done(None, Phase.SEND, self._role)

    def _receive(self, effect: Receive) -> _Done:
        return _Done(self._channels[effect.peer].receive(effect.within_s), Phase.WAIT, self._role)

    def _poll(self, effect: Poll) -> _Done:
        message: Message | None = self._channels[effect.peer].poll()
        return _Done(message, None if message is None else Phase.WAIT, self._role)

    def _clock(self, _: Clock) -> _Done:
        return _Done(time.perf_counter(), None, self._role)

    def _commit_tokens(self, effect: Commit) -> _Done:
        self._commit(effect.tokens)
        return _Done(None, Phase.COMMIT, self._role, tokens=len(effect.tokens))

    def _forward(self, role: Role, kind: ForwardKind, entry: Entry, *, top_k: int = 0) -> BatchResult:
        return self._models[role].forward(ForwardBatch(kind, (entry,), top_k))
