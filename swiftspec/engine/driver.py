"""The engine's driver: executes a role program's effects with real models and a real channel, and times each."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from swiftspec.engine.channel import Channel
from swiftspec.engine.residual import ResidualSampling
from swiftspec.engine.sampling import Sampler, top_candidates
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
    TargetForward,
)
from swiftspec.timeline import Phase, Span

__all__ = ["Driver", "Model"]


class Model(Protocol):
    """A decoder with its cache, as the driver sees it."""

    def reset(self) -> None:
        """Forget every cached token."""

    def prefill(self, tokens: tuple[int, ...]) -> Any:
        """Put tokens into the prefix; logits after the last one, (vocab,)."""

    def forward(self, rows: tuple[Row, ...]) -> Any:
        """Append rows to the tree; logits (rows, vocab)."""

    def keep(self, slots: tuple[int, ...], num_verified: int) -> None:
        """Compact the cache."""


class _Done(NamedTuple):
    """An effect's answer and what its span says; no span without a phase."""

    answer: Any
    phase: Phase | None
    model: Role
    rows: int = 0
    tokens: int = 0


class Driver:
    """Runs one program to its end.

    Parameters
    ----------
    role : Role
        Whose program this process runs; spans carry it.
    models : mapping
        The models of this process, by role.
    channel : Channel or None
        To the peer role; None where the program never talks to one.
    commit : callable
        Takes committed tokens.
    interrupted : callable
        Asked after each commit; when true the program ends there.
    sampler : Sampler
        Draws the target's choices, and the draft's candidates where it needs their probabilities.
    """

    def __init__(
        self,
        *,
        role: Role,
        models: Mapping[Role, Model],
        channel: Channel | None,
        commit: Callable[[tuple[int, ...]], None],
        interrupted: Callable[[], bool],
        sampler: Sampler,
    ) -> None:
        self._role = role
        self._models = models
        self._channel = channel
        self._commit = commit
        self._interrupted = interrupted
        self._sampler = sampler
        self._residual = ResidualSampling(sampler) if sampler.needs_draft_probabilities else None
        self._perform: dict[type[Effect], Callable[[Any], _Done]] = {
            Prefill: self._prefill,
            DraftForward: self._draft_forward,
            TargetForward: self._target_forward,
            KeepKV: self._keep_kv,
            Send: self._send,
            Receive: self._receive,
            Poll: self._poll,
            Commit: self._commit_tokens,
        }

    def run(self, program: Program) -> list[Span]:
        """Every span of the program, in order; those so far when it was told to stop."""
        for held in self._models.values():
            held.reset()
        spans: list[Span] = []
        clock, perform, role = time.perf_counter, self._perform, self._role
        answer: Any = None
        try:
            while True:
                effect = program.send(answer)
                start_s = clock()
                answer, phase, model, rows, tokens = perform[type(effect)](effect)
                if phase is not None:
                    spans.append(Span(role, phase, model, rows, tokens, start_s, clock()))
                    if phase is Phase.COMMIT and self._interrupted():
                        return spans
        except (StopIteration, InterruptedError):
            return spans

    def _prefill(self, effect: Prefill) -> _Done:
        logits = self._models[effect.role].prefill(effect.tokens)
        if self._residual:
            self._residual.prefill(effect.role, effect.tokens)
        choice = None
        if effect.role is Role.TARGET:
            choice = self._sampler.choose(logits.unsqueeze(0), [len(effect.tokens) - 1])[0]
        return _Done(choice, Phase.PREFILL, effect.role, rows=len(effect.tokens))

    def _draft_forward(self, effect: DraftForward) -> _Done:
        logits = self._models[Role.DRAFT].forward(effect.rows)
        if self._residual:
            candidates = self._residual.propose(effect.rows, logits, effect.num_candidates)
        else:
            tokens, logprobs = top_candidates(logits, effect.num_candidates)
            candidates = tuple(map(Candidates, map(tuple, tokens), map(tuple, logprobs)))
        return _Done(candidates, Phase.EXPAND, Role.DRAFT, rows=len(effect.rows))

    def _target_forward(self, effect: TargetForward) -> _Done:
        logits = self._models[Role.TARGET].forward(effect.rows)
        if self._residual:
            choices = self._residual.choose(effect.rows, logits)
        else:
            choices = tuple(self._sampler.choose(logits, [row.position for row in effect.rows]))
        return _Done(choices, Phase.VERIFY, Role.TARGET, rows=len(effect.rows))

    def _keep_kv(self, effect: KeepKV) -> _Done:
        self._models[effect.role].keep(effect.slots, effect.num_verified)
        if self._residual:
            self._residual.keep(effect.role, effect.slots, effect.num_verified)
        return _Done(None, Phase.COMPACT, effect.role, rows=len(effect.slots))

    def _send(self, effect: Send) -> _Done:
        self._peer.send(effect.message)
        return _Done(None, Phase.SEND, self._role)

    def _receive(self, _: Receive) -> _Done:
        return _Done(self._peer.receive(), Phase.WAIT, self._role)

    def _poll(self, _: Poll) -> _Done:
        message: Message | None = self._peer.poll()
        return _Done(message, None if message is None else Phase.WAIT, self._role)

    def _commit_tokens(self, effect: Commit) -> _Done:
        self._commit(effect.tokens)
        return _Done(None, Phase.COMMIT, self._role, tokens=len(effect.tokens))

    @property
    def _peer(self) -> Channel:
        assert self._channel is not None, "a program that talks to a peer needs a channel"
        return self._channel
