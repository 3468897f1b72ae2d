"""Recovery from a lost peer, for all disaggregated policies: the target continues without its draft, and rejoins it.

A role's programs run inside of these, which relay their effects and therefore know the text and how much of it the
cache holds. The target waits for its draft for `patience_s` at most. Then, or after an invalid message, it abandons the
policy's program, decodes alone by a policy that needs no draft, and sends a probe now and then. On a probe the draft
abandons its own program and replies how much of the text it holds; the missing tokens are sent in pieces of bounded
size. Meanwhile the target decodes: it never waits for a prefill. Once little is missing, both restart the policy's
programs on the whole text, and prefill only what their caches lack.

    target to draft     Probe          opens an exchange; repeated until it is answered
    draft to target     ProbeReply     answers every Probe and CatchUp
    target to draft     CatchUp        answers every ProbeReply; the last one starts both

Any of these may be lost or late: a later Probe starts over, and the channel delivers nothing from an older exchange.
Where features go beside the verdicts (see `base.sends_features`), those of the gap are gone: the target does not probe,
decodes alone to the end of the request, and both are together again in the next one.

The target's tokens are its own whatever the draft sends, so no loss changes the output.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any

from swiftspec.policies.base import Policy, sends_features
from swiftspec.policies.effects import (
    CatchUp,
    Clock,
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
    Stop,
    Subprogram,
    TargetExit,
    TargetForward,
    Verdict,
)
from swiftspec.policies.request import Request

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.8  # between probes; twice as long each time
_COMMITS_TO_TRUST = 8  # after this many, an exchange was worth opening, and the next pause is the first again
_MOST_MISSING = 32  # tokens that a draft may lack when both start
_MOST_TOKENS = 4000  # of one CatchUp
_FIRST_ANSWER_S = 0.003
# Steps that a draft is waited for: whoever is late holds up all that share the step, and is lost if nobody waits.
_PATIENCE_STEPS, _PATIENT_REQUESTS = 2.0, 8
_LEAST_PATIENCE_S = 0.005


class Recoverable(ABC):
    """One role's part in one request, as a process runs it: performs a program's effects, and tracks text and cache.

    lost: whether this role has lost its peer and not found it again; a target may have finished all the same.
    num_losses: how often it lost it. alone_s: seconds that a target was without its draft.
    """

    def __init__(self, policy: Policy, request: Request, role: Role, *, lost: bool = False) -> None:
        self._policy, self._request, self._role = policy, request, role
        self._text = list(request.prompt)  # and all verified tokens known to this role
        self._num_cached = 0  # tokens of it in the prefix
        self._num_slots = 0  # of the tree in use
        self.lost = lost
        self.num_losses = 0
        self.alone_s = 0.0
        # Effects that this side performs in its own way, and what the others mean once performed.
        self._ask: dict[type[Effect], Callable[[Any], Subprogram[Any]]] = {Prefill: self._prefill}
        self._note: dict[type[Effect], Callable[[Any, Any], None]] = {
            **dict.fromkeys((DraftForward, TargetForward, TargetExit), self._note_rows),
            KeepKV: self._note_kept,
            Commit: self._note_commit,
        }

    @abstractmethod
    def run(self) -> Program:
        """The program, for a driver whose caches are empty."""

    def _program(self, policy: Policy) -> Program:
        """A policy's program for the rest of the request."""
        return policy.programs(self._request.rest(self._text))[self._role]

    def _relay(self, program: Program) -> Subprogram[bool]:
        """Run a program; returns whether it ended by itself. If not it was abandoned, which leaves no tree."""
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

    def _prefill(self, effect: Prefill) -> Subprogram[int | None]:
        """Prefill those of the tokens, the first ones of the text, that the prefix lacks."""
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


class RecoveringTarget(Recoverable):
    """The target of a disaggregated policy, with its draft or alone.

    fallback, patience_s, alone: as of `recoverable`.
    first_answer_s: longest wait for the answer to its first probe: a draft that is not busy answers at once, and then
        reads the text during the next forward.
    """

    def __init__(
        self,
        policy: Policy,
        request: Request,
        *,
        fallback: Policy,
        patience_s: Callable[[], float],
        alone: bool = False,
        first_answer_s: float = 0.0,
    ) -> None:
        super().__init__(policy, request, Role.TARGET, lost=alone)
        self._fallback, self._patience_s, self._first_answer_s = fallback, patience_s, first_answer_s
        self._lost_at_s = 0.0
        self._patient_until_s: float | None = None  # from the first wait after a forward
        self._pause_s = _FIRST_PAUSE_S
        self._probe_at_s = -inf
        self._num_commits = 0  # since both started
        self._can_rejoin = not sends_features(policy)
        self._ask |= {Receive: self._receive, TargetForward: self._forward}

    def run(self) -> Program:
        if self.lost:
            self._lost_at_s = yield from Clock()
        while not (yield from self._relay(self._program(self._fallback if self.lost else self._policy))):
            # The policy's program was abandoned because of the loss, or the fallback's because the draft is back.
            if self.lost:
                yield from self._note_time_alone()
            else:
                yield from self._note_loss()
            self.lost = not self.lost
        if self.lost:
            yield from self._note_time_alone()
            yield Send(Stop())

    def _note_time_alone(self) -> Subprogram[None]:
        now_s = yield from Clock()
        self.alone_s += now_s - self._lost_at_s

    def _note_loss(self) -> Subprogram[None]:
        """Schedule the next probe: at once for a draft that was useful; for one that was not, with growing pauses."""
        self.num_losses += 1
        now_s = self._lost_at_s = yield from Clock()
        if self._num_commits >= _COMMITS_TO_TRUST:
            self._pause_s, self._probe_at_s = _FIRST_PAUSE_S, now_s
        else:
            self._probe_at_s = now_s + self._pause_s
        self._num_commits = 0

    def _forward(self, effect: TargetForward) -> Subprogram[tuple[int, ...]]:
        # Here the fallback's cache is settled: all of the text but its last token, and no tree.
        if self.lost and self._can_rejoin and (yield from self._finds_draft()):
            raise PeerError("the draft is back")
        choices: tuple[int, ...] = yield effect
        return choices

    def _note_rows(self, effect: DraftForward | TargetForward | TargetExit, _: Any) -> None:
        super()._note_rows(effect, _)
        self._patient_until_s = None

    def _note_commit(self, effect: Commit, _: Any) -> None:
        super()._note_commit(effect, _)
        self._num_commits += not self.lost

    def _receive(self, effect: Receive) -> Subprogram[Message]:
        """One patience covers all waits between two forwards, so that a draft cannot stretch it by small messages."""
        now_s = yield from Clock()
        if self._patient_until_s is None:
            self._patient_until_s = now_s + self._patience_s()
        message: Message | None = yield Receive(effect.peer, max(0.0, self._patient_until_s - now_s))
        if message is None:
            raise PeerError("nothing useful came from the draft in time")
        return message

    def _finds_draft(self) -> Subprogram[bool]:
        """Probe if it is due, and send the draft what it lacks if it asks; returns whether both start together now."""
        message: Message | None = yield Poll()
        # An answer that is there counts, though the next probe be due: that would begin again.
        if not isinstance(message, ProbeReply) and (now_s := (yield from Clock())) >= self._probe_at_s:
            yield Send(Probe())
            self._probe_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            message = yield Receive(within_s=self._first_answer_s) if self._first_answer_s else Poll()
            self._first_answer_s = 0.0
        known = message.num_known if isinstance(message, ProbeReply) else -1
        if not 0 <= known <= len(self._text):
            return False
        missing = tuple(self._text[known : known + _MOST_TOKENS])
        start = len(missing) <= _MOST_MISSING
        yield Send(CatchUp(known, missing, start))
        return start


class RecoveringDraft(Recoverable):
    """The draft of a policy with one target. `restarted`: it knows only the prompt, and waits for a probe.

    Where it can never rejoin (see the module), it only waits for the end of the request.
    """

    def __init__(self, policy: Policy, request: Request, *, restarted: bool = False) -> None:
        super().__init__(policy, request, Role.DRAFT, lost=restarted)
        self._heard: Message | None = None  # the message that made it abandon the policy's program
        self._note |= dict.fromkeys((Receive, Poll), self._note_heard)

    def run(self) -> Program:
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
            if not isinstance(answer, Stop):  # every program obeys it where it expects it
                raise PeerError("the target continued alone")

    def _rejoins(self) -> Subprogram[bool]:
        """Receive missed text and prefill it, until the target starts both; False if the target has finished."""
        message, self._heard = self._heard, None
        while not isinstance(message, Stop) and sends_features(self._policy):
            message = yield from Receive()
        while not isinstance(message, Stop):
            if isinstance(message, CatchUp) and self._learns(message) and message.start:
                return True
            yield from self._prefill(Prefill(self._role, tuple(self._text[:-1])))
            if isinstance(message, Probe | CatchUp):
                yield Send(ProbeReply(len(self._text)))
            message = yield from Receive()
        return False

    def _learns(self, text: CatchUp) -> bool:
        """Whether a piece of the text continues what is known, and leaves something to generate."""
        end = text.position + len(text.tokens)
        fits = text.position <= len(self._text) <= end
        if not fits or end >= len(self._request.prompt) + self._request.max_new_tokens:
            return False
        self._text += text.tokens[len(self._text) - text.position :]
        return True


def served_target(
    policy: Policy, request: Request, *, fallback: Policy, patience_s: Callable[[], float]
) -> RecoveringTarget:
    """The target's part in another engine: its draft learns of the request by the first probe.

    patience_s: longest wait for the draft, as of now.
    """
    return RecoveringTarget(
        policy, request, fallback=fallback, patience_s=patience_s, alone=True, first_answer_s=_FIRST_ANSWER_S
    )


def served_patience_s(step_s: float, num_requests: int) -> float:
    """Longest wait for drafts after a step of another engine that takes so long, of so many requests."""
    steps = _PATIENCE_STEPS * min(1.0, _PATIENT_REQUESTS / max(1, num_requests))
    return max(_LEAST_PATIENCE_S, steps * step_s)


class ServedDraft(RecoveringDraft):
    """The draft of such a target: of a request it knows only what it is told. max_tokens: of its text."""

    def __init__(self, policy: Policy, *, max_tokens: int, mask_token: int = -1) -> None:
        # A request has a prompt; this one's is never read.
        request = Request(prompt=(0,), max_new_tokens=max_tokens - 1, mask_token=mask_token)
        super().__init__(policy, request, restarted=True)
        self._text.clear()


class GroupMember(Recoverable):
    """One of several target groups, or their draft: its program ends at an invalid message, or after `patience_s`.

    The draft commits, so its launcher sends out the rest of the request again.
    """

    def __init__(self, policy: Policy, request: Request, role: Role, *, patience_s: Callable[[], float] | None) -> None:
        super().__init__(policy, request, role)
        self._patience_s = patience_s
        self._ask[Receive] = self._receive

    def run(self) -> Program:
        self.lost = not (yield from self._relay(self._program(self._policy)))
        self.num_losses += self.lost

    def _receive(self, effect: Receive) -> Subprogram[Message]:
        message: Message | None = yield Receive(effect.peer, self._patience_s() if self._patience_s else None)
        if message is None:
            raise PeerError(f"nothing came from peer {effect.peer} in time")
        return message


def recoverable(
    policy: Policy,
    request: Request,
    role: Role,
    *,
    fallback: Policy,
    patience_s: Callable[[], float],
    alone: bool = False,
) -> Recoverable:
    """A role's part in a disaggregated policy.

    fallback: a policy without a draft, by which the target decodes while it is alone.
    patience_s: longest wait of the target for its draft, each time it loses it, as of now.
    alone: target: the draft is known to be gone. Draft: this process replaces one that died.
    """
    if policy.target_groups > 1:
        return GroupMember(policy, request, role, patience_s=patience_s if role is Role.TARGET else None)
    if role is Role.DRAFT:
        return RecoveringDraft(policy, request, restarted=alone)
    return RecoveringTarget(policy, request, fallback=fallback, patience_s=patience_s, alone=alone)
