"""Recording of a request's rounds: the forwards, messages and commits of its programs, without its trees.

A request that is simulated in full is logged effect by effect and cut into parts that can be played again at other
times (see `replay`). The target's program is cut into rounds, each of which ends with a commit. A draft's is cut where
it received a message: the effects that follow at once, and then those of each turn of a loop that polls for the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from swiftspec.policies.effects import (
    Clock,
    Commit,
    DraftForward,
    Effect,
    Forward,
    KeepKV,
    Message,
    Poll,
    Program,
    Receive,
    Role,
    Row,
    Send,
    TargetExit,
    TargetForward,
)

_LEAST_ROUNDS = 3
Log = list[tuple[Effect, Any]]  # effects of a program and their answers


class Await(NamedTuple):
    """Wait for a message of the draft: those of later segments, or later in the same one, will do as well."""

    segment: int
    number: int


Played = Effect | Await


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Effects of a target's program up to a commit and the compactions after it.

    effects: messages have no content: what counts is the segment that each begins at the draft.
    start: output tokens before this round.
    path: rows of its verification that were accepted: as many as it committed tokens.
    segments: the draft's segment that each message begins.
    verdict: index of the effect that tells the draft what was accepted: the last message, if no forward follows it.
    """

    effects: tuple[Played, ...]
    start: int
    path: tuple[int, ...]
    segments: tuple[int, ...]
    verdict: int | None


@dataclass(slots=True, kw_only=True)
class Segment:
    """Effects of a draft's program from one message to the next.

    effects: what follows the message.
    turns: effects after each poll that found no message.
    num_messages: messages sent.
    is_polling: whether the next message was found by a poll; else the program waited for it, or ended.
    """

    effects: list[Effect] = field(default_factory=list)
    turns: list[list[Effect]] = field(default_factory=list)
    num_messages: int = 0
    is_polling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Rounds of a request.

    segments: by the number of messages received before; empty without a draft's program.
    """

    rounds: tuple[Round, ...]
    segments: tuple[Segment, ...]
    num_prompt_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.rounds[-1].start + len(self.rounds[-1].path)

    @classmethod
    def of(cls, logs: Sequence[Log], *, num_prompt_tokens: int) -> "Recording | None":
        """Cut the logs of a target's program and of a draft's, if there is one. None if they cannot be played again.

        That is so for effects whose answers depend on the clock, and for tokens that the draft commits.
        """
        target, *drafts = logs
        effects = [effect for log in logs for effect, _ in log]
        is_timed = any(isinstance(effect, Clock) or getattr(effect, "within_s", None) is not None for effect in effects)
        if is_timed or len(drafts) > 1 or any(isinstance(effect, Commit) for log in drafts for effect, _ in log):
            return None
        segments, sent = _segments(drafts[0]) if drafts else ([], [])
        rounds = _rounds(target, sent)
        if len(rounds) < _LEAST_ROUNDS or (segments and not all(each.segments for each in rounds)):
            return None
        return cls(rounds=tuple(rounds), segments=tuple(segments), num_prompt_tokens=num_prompt_tokens)


def logged(program: Program, log: Log) -> Program:
    """A program whose effects and answers are logged."""
    answer: Any = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration:
            return
        answer = yield effect
        log.append((effect, answer))


def _segments(log: Log) -> tuple[list[Segment], list[Await]]:
    """A draft's segments, and which of them sent each of its messages, in their order."""
    segments: list[Segment] = [Segment()]
    sent: list[Await] = []
    for effect, answer in log:
        current = segments[-1]
        if isinstance(effect, Poll) and answer is None:
            current.turns.append([])
        elif isinstance(effect, Poll | Receive):
            current.is_polling = isinstance(effect, Poll)
            segments.append(Segment())
        else:
            if isinstance(effect, Send):
                sent.append(Await(len(segments) - 1, current.num_messages))
                current.num_messages += 1
            (current.turns[-1] if current.turns else current.effects).append(_plain(effect))
    return segments, sent


def _rounds(log: Log, sent: Sequence[Await]) -> list[Round]:
    """A target's rounds. sent: segments that sent the draft's messages."""
    rounds: list[Round] = []
    played: list[Played] = []
    segments: list[int] = []
    path: tuple[int, ...] = ()
    start = num_tokens = num_sent = num_received = 0
    is_committed = False

    def close() -> None:
        nonlocal played, segments, path, start, num_tokens, is_committed
        if num_tokens:
            whole = path if len(path) == num_tokens else tuple(range(num_tokens))
            rounds.append(
                Round(
                    effects=tuple(played), start=start, path=whole, segments=tuple(segments), verdict=_verdict(played)
                )
            )
        start += num_tokens
        played, segments, path, num_tokens, is_committed = [], [], (), 0, False

    for effect, answer in log:
        if is_committed and not isinstance(effect, KeepKV):
            close()
        if isinstance(effect, Poll | Receive):
            if answer is not None:
                _note_message(played, effect, sent[num_received])
                num_received += 1
            continue
        if isinstance(effect, Commit):
            num_tokens, is_committed = len(effect.tokens), True
        elif isinstance(effect, KeepKV) and effect.role is Role.TARGET:
            path = effect.slots
        elif isinstance(effect, Send):
            num_sent += 1
            segments.append(num_sent)
        played.append(_plain(effect))
    close()
    return rounds


def _note_message(played: list[Played], effect: Poll | Receive, message: Await) -> None:
    """Note that a target received a message. One that it polled for it would not have waited for."""
    if isinstance(effect, Poll):
        played.append(effect)
        return
    if played and isinstance(played[-1], Await):
        played.pop()  # of several messages the last one is to be waited for
    played.append(message)


def _verdict(effects: Sequence[Played]) -> int | None:
    for index in range(len(effects) - 1, -1, -1):
        if isinstance(effects[index], Send):
            return index
        if isinstance(effects[index], Forward):
            break
    return None


@cache
def _rows(count: int) -> tuple[Row, ...]:
    return (Row(0, 0, 0),) * count


_NO_CONTENT: Message = None  # type: ignore[assignment]  # the player sends messages of its own


def _plain(effect: Effect) -> Effect:
    """An effect without tokens."""
    match effect:
        case DraftForward(rows, num_candidates, fuzzy):
            return DraftForward(_rows(len(rows)), num_candidates, fuzzy)
        case TargetForward(rows):
            return TargetForward(_rows(len(rows)))
        case TargetExit(rows, num_candidates):
            return TargetExit(_rows(len(rows)), num_candidates)
        case Send(_, peer):
            return Send(_NO_CONTENT, peer)
    return effect
