"""Recovery from a lost peer: the target goes on without its draft and takes it back. For all disaggregated policies.

A role's programs run inside of these, which relay their effects and so know the text and what of it the cache holds.
The target waits for its draft for `patience_s` and no longer. Then, or when what came makes no sense, it abandons the
policy's program and decodes on alone, by a policy that needs no draft; and probes now and then. The draft abandons its
own program when it hears that, and says how much of the text it holds; what it lacks it is sent, a bounded piece at a
time. Meanwhile the target decodes: it never waits for a prefill. Once little is missing both start the policy's
programs afresh, on the whole text, and prefill only what their caches lack.

    target to draft     Probe          opens an exchange; repeated until it is answered
    draft to target     Hello          answers every Probe and Text
    target to draft     Text           answers every Hello; the last one starts both

Any of these may be lost or come late: a later Probe begins again, and the channel delivers nothing out of an older
exchange. The target's tokens are its own whatever the draft says; so no loss changes the output.
"""

from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from swiftspec.policies.base import Policy
from swiftspec.policies.effects import (
    CatchUp,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Message,
    PeerError,
    Poll,
    Prefill,
    Probe,
    ProbeReply,
    Program,
    Receive,
    Role,
    Send,
    Step,
    Stop,
    TargetExit,
    TargetForward,
    Verdict,
    clock,
    poll,
    receive,
)
from swiftspec.policies.request import Request

__all__ = ["GroupMember", "Recoverable", "RecoveringDraft", "RecoveringTarget", "recoverable"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.8  # between probes; twice as long each time
_COMMITS_TO_TRUST = 8  # after that many an exchange was worth opening, and the next pause is the first again
_MOST_MISSING = 32  # tokens that a draft may lack when both start
_MOST_TOKENS = 4000  # of one Text


class Recoverable(Protocol):
    """One role's part in one request, as a process runs it."""

    @property
    def lost(self) -> bool:
        """Whether this role has lost its peer, and not found it again; a target may have finished all the same."""

    @property
    def num_losses(self) -> int:
        """Number of times that this role has lost its peer."""

    def run(self) -> Program:
        """The program, for a driver whose caches are empty."""


def recoverable(
    policy: Policy, request: Request, role: Role, *, fallback: Policy, patience_s: float, alone: bool = False
) -> Recoverable:
    """A role's part in a disaggregated policy.

    Parameters
    ----------
    fallback : Policy
        Needs no draft: how the target decodes while it is alone.
    patience_s : float
        Longest that the target waits for its draft, each time it loses it.
    alone : bool
        Target: the draft is known not to be there. Draft: this process has taken the place of one that died.
    """
    if policy.target_groups > 1:
        return GroupMember(policy, request, role, patience_s=patience_s if role is Role.TARGET else None)
    if role is Role.DRAFT:
        return RecoveringDraft(policy, request, restarted=alone)
    return RecoveringTarget(policy, request, fallback=fallback, patience_s=patience_s, alone=alone)


class _Relay:
    """Performs a program's effects, and remembers what they say of the text and of this role's cache."""

    def __init__(self, policy: Policy, request: Request, role: Role) -> None:
        self._policy, self._request, self._role = policy, request, role
        self._text = list(request.prompt)  # and all verified tokens that this role knows of
        self._num_cached = 0  # tokens of it in the prefix
        self._num_slots = 0  # of the tree in use
        self.num_losses = 0
        # Effects that this side performs in its own way, and what the others say once they are performed.
        self._ask: dict[type[Effect], Callable[[Any], Step[Any]]] = {Prefill: self._prefill}
        self._note: dict[type[Effect], Callable[[Any, Any], None]] = {
            **dict.fromkeys((DraftForward, TargetForward, TargetExit), self._note_rows),
            KeepKV: self._note_kept,
            Commit: self._note_commit,
        }

    def _program(self, policy: Policy) -> Program:
        """A policy's program for what is left of the request."""
        num_generated = len(self._text) - len(self._request.prompt)
        rest = Request(
            prompt=tuple(self._text),
            max_new_tokens=self._request.max_new_tokens - num_generated,
            eos_token_ids=self._request.eos_token_ids,
        )
        return policy.programs(rest)[self._role]

    def _relay(self, program: Program) -> Step[bool]:
        """Run a program; whether it came to its end. If not it was abandoned, which leaves no tree behind."""
        ask, note = self._ask, self._note
        answer: Any = None
        try:
            while True:  # every effect of the request passes here
                effect = program.send(answer)
                kind = type(effect)
                answer = (yield effect) if kind not in ask else (yield from ask[kind](effect))
                if kind in note:
                    note[kind](effect, answer)
        except StopIteration:
            return True
        except PeerError:
            program.close()
        if self._num_slots:
            yield KeepKV(self._role, (), 0)
            self._num_slots = 0
        return False

    def _prefill(self, effect: Prefill) -> Step[int | None]:
        """Prefill the tokens, the first of the text, that the prefix lacks."""
        position, self._num_cached = self._num_cached, max(self._num_cached, len(effect.tokens))
        if position >= len(effect.tokens):
            return None
        choice: int | None = yield Prefill(effect.role, effect.tokens[position:], position)
        return choice

    def _note_rows(self, effect: DraftForward | TargetForward | TargetExit, _: Any) -> None:
        self._num_slots += len(effect.rows)

    def _note_kept(self, effect: KeepKV, _: Any) -> None:
        self._num_cached += effect.num_verified
        self._num_slots = len(effect.slots) - effect.num_verified

    def _note_commit(self, effect: Commit, _: Any) -> None:
        self._text += effect.tokens


class RecoveringTarget(_Relay):
    """The target of a policy that has one, with its draft or alone.

    Attributes
    ----------
    lost : bool
        Whether it is alone just now.
    num_losses : int
        How often it has lost its draft.
    """

    def __init__(
        self, policy: Policy, request: Request, *, fallback: Policy, patience_s: float, alone: bool = False
    ) -> None:
        if not patience_s > 0:
            raise ValueError(f"patience_s is {patience_s}; expected a positive number")
        super().__init__(policy, request, Role.TARGET)
        self._fallback = fallback
        self._patience_s = patience_s
        self.lost = alone
        self._patient_until_s: float | None = None  # from the first wait after a forward
        self._pause_s = _FIRST_PAUSE_S
        self._probe_at_s = -inf
        self._num_commits = 0  # since both started
        self._ask |= {Receive: self._receive, TargetForward: self._forward}

    def run(self) -> Program:
        """As `Recoverable.run`."""
        while not (yield from self._relay(self._program(self._fallback if self.lost else self._policy))):
            # It was abandoned: the policy's because of the loss, the fallback's because the draft is back.
            self.lost = not self.lost
            if self.lost:
                yield from self._note_loss()
        if self.lost:
            yield Send(Stop())

    def _note_loss(self) -> Step[None]:
        """A draft that was of use is asked back at once; one that was not, less and less often."""
        self.num_losses += 1
        now_s = yield from clock()
        if self._num_commits >= _COMMITS_TO_TRUST:
            self._pause_s, self._probe_at_s = _FIRST_PAUSE_S, now_s
        else:
            self._probe_at_s = now_s + self._pause_s
        self._num_commits = 0

    def _forward(self, effect: TargetForward) -> Step[tuple[int, ...]]:
        # Here the fallback's cache is settled: all of the text but its last token, and no tree.
        if self.lost and (yield from self._finds_draft()):
            raise PeerError("the draft is back")
        choices: tuple[int, ...] = yield effect
        return choices

    def _note_rows(self, effect: DraftForward | TargetForward | TargetExit, _: Any) -> None:
        super()._note_rows(effect, _)
        self._patient_until_s = None

    def _note_commit(self, effect: Commit, _: Any) -> None:
        super()._note_commit(effect, _)
        self._num_commits += not self.lost

    def _receive(self, effect: Receive) -> Step[Message]:
        """One patience is for all that is awaited between two forwards, lest a draft say ever so little."""
        now_s = yield from clock()
        if self._patient_until_s is None:
            self._patient_until_s = now_s + self._patience_s
        message: Message | None = yield Receive(effect.peer, max(0.0, self._patient_until_s - now_s))
        if message is None:
            raise PeerError(f"nothing of use came from the draft within {self._patience_s} s")
        return message

    def _finds_draft(self) -> Step[bool]:
        """Probe if it is time to, tell the draft what it lacks if it asks; whether both go on together now."""
        now_s = yield from clock()
        if now_s >= self._probe_at_s:
            yield Send(Probe())
            self._probe_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        message = yield from poll()
        known = message.num_known if isinstance(message, ProbeReply) else -1
        if not len(self._request.prompt) <= known <= len(self._text):
            return False
        missing = tuple(self._text[known : known + _MOST_TOKENS])
        start = len(missing) <= _MOST_MISSING
        yield Send(CatchUp(known, missing, start))
        return start


class RecoveringDraft(_Relay):
    """The draft of a policy with one target. `restarted`: it knows the prompt alone, and waits until it is asked."""

    def __init__(self, policy: Policy, request: Request, *, restarted: bool = False) -> None:
        super().__init__(policy, request, Role.DRAFT)
        self.lost = restarted
        self._heard: Message | None = None  # what made it abandon the policy's program
        self._note |= dict.fromkeys((Receive, Poll), self._note_heard)

    def run(self) -> Program:
        """As `Recoverable.run`."""
        while not self.lost or (yield from self._rejoins()):
            self.lost = False
            if (yield from self._relay(self._program(self._policy))):
                return
            self.lost = True
            self.num_losses += 1

    def _note_heard(self, _: Receive | Poll, answer: Message | None) -> None:
        if isinstance(answer, Verdict):
            self._text += answer.tokens
        elif isinstance(answer, Probe | CatchUp | Stop):
            self._heard = answer
            if not isinstance(answer, Stop):  # which every program obeys where it expects it
                raise PeerError("the target has gone on alone")

    def _rejoins(self) -> Step[bool]:
        """Learn what was missed, and put it into the cache, until the target starts both; False if it has finished."""
        message, self._heard = self._heard, None
        while not isinstance(message, Stop):
            if isinstance(message, CatchUp) and self._learns(message) and message.start:
                return True
            yield from self._prefill(Prefill(self._role, tuple(self._text[:-1])))
            if isinstance(message, Probe | CatchUp):
                yield Send(ProbeReply(len(self._text)))
            message = yield from receive()
        return False

    def _learns(self, text: CatchUp) -> bool:
        """Whether a piece of the text continues what is known of it, and leaves something to generate."""
        end = text.position + len(text.tokens)
        fits = text.position <= len(self._text) <= end
        if not fits or end >= len(self._request.prompt) + self._request.max_new_tokens:
            return False
        self._text += text.tokens[len(self._text) - text.position :]
        return True


class GroupMember(_Relay):
    """One of several target groups, or their draft: its program ends at nonsense, or at `patience_s` of silence.

    Who commits is the draft: what is left of the request is for its launcher to hand out anew.
    """

    def __init__(self, policy: Policy, request: Request, role: Role, *, patience_s: float | None) -> None:
        super().__init__(policy, request, role)
        self._patience_s = patience_s
        self.lost = False
        self._ask[Receive] = self._receive

    def run(self) -> Program:
        """As `Recoverable.run`."""
        self.lost = not (yield from self._relay(self._program(self._policy)))
        self.num_losses += self.lost

    def _receive(self, effect: Receive) -> Step[Message]:
        message: Message | None = yield Receive(effect.peer, self._patience_s)
        if message is None:
            raise PeerError(f"nothing came from peer {effect.peer} within {self._patience_s} s")
        return message
