"""A request's part on a device group of the engine: its effects, done with real models and channels, and its spans.

Forwards are the exception: a part says what its forward adds to a batch, and makes the answer from the batch's result.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, Model, Rows, as_candidates
from swiftspec.engine.model.sampling.chain_sampler import ChainSampler
from swiftspec.engine.model.sampling.output_scores import OutputScores
from swiftspec.engine.model.sampling.rejection_sampler import RejectionSampler
from swiftspec.engine.model.sampling.sampler import Sampler, log_probs
from swiftspec.policies.effects import (
    Candidates,
    Choose,
    Clock,
    Commit,
    DraftForward,
    Effect,
    Forward,
    KeepKV,
    Message,
    Poll,
    Prefill,
    Role,
    Row,
    Send,
    TargetExit,
    TargetFinish,
    TargetForward,
)
from swiftspec.timing.timeline import Phase, Span


class PeerChannel(Protocol):
    """A request's messages to and from one peer, as the driver sees them."""

    def send(self, message: Message) -> None:
        """Send without waiting for the peer."""

    def poll(self) -> Message | None:
        """The next message, if one is there."""

    def take(self) -> Message | None:
        """The next message, among those that were read already."""


class Form(NamedTuple):
    """A forward of a request, as part of a batch."""

    effect: Forward
    phase: Phase
    model: Role
    entry: Entry
    num_candidates: int = 0  # to find for each row


class RequestPart:
    """One request on one device group.

    role, group: of this process's programs, the group if there are several; spans carry both.
    sequence: its caches, in every model of this process.
    tenant: of the target; all tenants have one draft.
    residual: decides on draft tokens by both models' probabilities; None: they are followed.
    prompt: the request's, if log-probs of the output are wanted.
    score: takes log-probs of prompt tokens, or of tokens that are committed next, and the likeliest tokens in the place
        of each, if they are wanted.

    spans: everything it did so far, in order.
    """

    def __init__(
        self,
        *,
        role: Role,
        group: int = 0,
        sequence: int = 0,
        tenant: int = 0,
        models: Mapping[Role, Model],
        peers: Sequence[PeerChannel],
        commit: Callable[[tuple[int, ...]], None],
        sampler: Sampler,
        residual: RejectionSampler | ChainSampler | None = None,
        prompt: tuple[int, ...] = (),
        score: Callable[[tuple[float, ...], tuple[Candidates, ...]], None] = lambda *_: None,
    ) -> None:
        self.spans: list[Span] = []
        self.peers = peers
        self.sequence = sequence
        self._role = role
        self._group = group
        self._models = models
        self._commit = commit
        self._sampler = sampler
        self._score = score
        self._halfway: tuple[Row, ...] = ()  # rows of an exit until its finish
        self._residual = residual
        self._scores: OutputScores | None = None
        if sampler.num_log_probs is not None and role is Role.TARGET:
            self._scores = OutputScores(prompt, sampler.num_log_probs)
        self._perform: dict[type[Effect], Callable[[Any], Any]] = {
            Choose: self._choose_again,
            KeepKV: self._keep_kv,
            Send: self._send,
            Poll: self._poll,
            Clock: lambda _: time.perf_counter(),
            Commit: self._commit_tokens,
        }
        for held, model in models.items():
            model.reset(sequence, tenant if held is Role.TARGET else 0)

    def perform(self, effect: Effect) -> Any:
        """Do an effect that is neither a forward nor a wait; its answer."""
        return self._perform[type(effect)](effect)

    def note_forward(self, form: Form, start_s: float, end_s: float) -> None:
        """Add a forward. Requests that shared it have the same times, and each its own rows."""
        rows = form.entry.num_rows
        self.spans.append(Span(self._role, form.phase, form.model, rows, 0, start_s, end_s, self._group))

    def note_wait(self, start_s: float) -> None:
        self._note(Phase.WAIT, self._role, start_s)

    def note_delivery(self, end_s: float) -> None:
        """Let its commit last until the tokens had been handed on, unless it did something in between."""
        if self.spans and self.spans[-1].phase is Phase.COMMIT:
            self.spans[-1] = self.spans[-1]._replace(end_s=end_s)

    def _note(self, phase: Phase, model: Role, start_s: float, *, rows: int = 0, tokens: int = 0) -> None:
        self.spans.append(Span(self._role, phase, model, rows, tokens, start_s, time.perf_counter(), self._group))

    def drop_unfinished_round(self) -> None:
        """Forget what it did after its last commit, if it has committed anything: that came to nothing."""
        if any(span.phase is Phase.COMMIT for span in self.spans):
            while self.spans[-1].phase is not Phase.COMMIT:
                self.spans.pop()

    def form(self, effect: Forward) -> Form:
        """What a forward adds to a batch."""
        sequence = self.sequence
        match effect:
            case Prefill(role, tokens):
                chunk = Chunk(sequence, tokens, all_logits=bool(effect.scored))
                return Form(effect, Phase.PREFILL, role, chunk, effect.num_candidates)
            case DraftForward(rows, num_candidates, fuzzy):
                phase = Phase.FUZZY if fuzzy else Phase.EXPAND
                return Form(effect, phase, Role.DRAFT, Rows(sequence, rows), self._num_likeliest(num_candidates))
            case TargetForward(rows):
                return Form(effect, Phase.VERIFY, Role.TARGET, Rows(sequence, rows))
            case TargetExit(rows, num_candidates):
                self._halfway = rows
                return Form(effect, Phase.EXIT, Role.TARGET, Rows(sequence, rows), self._num_likeliest(num_candidates))
            case TargetFinish():
                return Form(effect, Phase.FINISH, Role.TARGET, Rows(sequence, self._halfway))

    def answer(self, form: Form, result: BatchResult, index: int) -> Any:
        """Answer of a forward from the batch's result, whose entry `index` was this request's."""
        effect = form.effect
        match effect:
            case Prefill() if effect.scored:
                candidates = _first(result.candidates[index], form.num_candidates) if form.num_candidates else ()
                self._score(log_probs(result.logits[index], effect.scored), candidates)
                return None
            case Prefill() if effect.num_candidates:
                best = _first(result.candidates[index], form.num_candidates)
                self._score(best[0].logprobs[:1], best)
                return best[0].tokens[0]
            case Prefill():
                return self._prefilled(effect, result, index)
            case DraftForward(rows, num_candidates, is_guess=True) if isinstance(self._residual, ChainSampler):
                return self._residual.guess(rows, result.logits[index], num_candidates)
            case DraftForward(rows, num_candidates) if self._residual:
                return self._residual.propose(rows, result.logits[index], num_candidates)
            case DraftForward(rows, num_candidates) | TargetExit(rows, num_candidates):
                return self._guesses(rows, num_candidates, result, index)
            case TargetForward(rows):
                return self._choices(rows, result, index)
            case TargetFinish():
                return self._choices(self._halfway, result, index)

    def _prefilled(self, effect: Prefill, result: BatchResult, index: int) -> int | None:
        if self._residual:
            self._residual.prefill(effect.role, effect.tokens)
        if effect.role is Role.DRAFT:
            return None
        logits = result.logits[index]
        choice = self._sampler.choose(logits, [effect.position + len(effect.tokens) - 1])[0]
        if self._scores:
            self._scores.prefill(effect.tokens, effect.position, choice, logits)
        return choice

    def _num_likeliest(self, num_candidates: int) -> int:
        """Candidates that the model is to find; none if they depend on random numbers, which takes all logits."""
        return 0 if self._sampler.temperature > 0.0 else num_candidates

    def _guesses(
        self, rows: Sequence[Row], num_candidates: int, result: BatchResult, index: int
    ) -> tuple[Candidates, ...]:
        """Guesses of what the target will choose, best first."""
        if self._sampler.temperature > 0.0:
            positions = [row.position for row in rows]
            return as_candidates(*self._sampler.guesses(result.logits[index], positions, num_candidates))
        return _first(result.candidates[index], num_candidates)

    def _choices(self, rows: Sequence[Row], result: BatchResult, index: int) -> tuple[int, ...]:
        logits = result.logits[index]
        if self._residual:
            choices = self._residual.choose(rows, logits)
        else:
            choices = tuple(self._sampler.choose(logits, [row.position for row in rows]))
        if self._scores:
            self._scores.forward(rows, choices, logits, is_final=not isinstance(self._residual, ChainSampler))
        return choices

    def _choose_again(self, effect: Choose) -> tuple[int, ...]:
        assert isinstance(self._residual, ChainSampler), "its requests alone are ratio-tested"
        choices = self._residual.choose_again(effect.drafted)
        if self._scores:
            self._scores.choose_again(choices)
        return choices

    def _keep_kv(self, effect: KeepKV) -> None:
        start_s = time.perf_counter()
        self._models[effect.role].keep(self.sequence, effect.slots, effect.num_verified)
        if self._residual:
            self._residual.keep(effect.role, effect.slots, effect.num_verified)
        if self._scores and effect.role is Role.TARGET:
            self._scores.keep(effect.slots, effect.num_verified)
        self._note(Phase.COMPACT, effect.role, start_s, rows=len(effect.slots))

    def _send(self, effect: Send) -> None:
        start_s = time.perf_counter()
        self.peers[effect.peer].send(effect.message)
        self._note(Phase.SEND, self._role, start_s)

    def _poll(self, effect: Poll) -> Message | None:
        start_s = time.perf_counter()
        message = self.peers[effect.peer].poll()
        if message is not None:
            self._note(Phase.WAIT, self._role, start_s)
        return message

    def _commit_tokens(self, effect: Commit) -> None:
        start_s = time.perf_counter()
        if self._scores:
            self._score(*self._scores.take(effect.tokens))
        self._commit(effect.tokens)
        self._note(Phase.COMMIT, self._role, start_s, tokens=len(effect.tokens))


def _first(candidates: tuple[Candidates, ...], count: int) -> tuple[Candidates, ...]:
    """The `count` most likely ones of each row: another request of the batch may have asked for more."""
    if not candidates or len(candidates[0].tokens) <= count:
        return candidates
    return tuple(Candidates(each.tokens[:count], each.logprobs[:count]) for each in candidates)
