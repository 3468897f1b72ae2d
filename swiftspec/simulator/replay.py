"""Replay of recorded rounds: programs that ask for the same forwards as real ones, and grow no trees.

At another time rounds may take longer or shorter. The replay assumes that they are otherwise the same:

- A round verifies as many rows and accepts as many tokens as in the recording. If fewer rows are granted, accepted ones
  among the others are verified in the next round, before its own.
- A draft that polls for the verdict takes its recorded turns until the verdict comes, then more of the largest one, as
  long as its tree has room; what it drafts meanwhile changes no acceptance.
- The target waits for the draft's message that it received in the recording, or any later one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from swiftspec.policies.effects import (
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
    Stop,
    Subprogram,
    TargetForward,
    Verdict,
)
from swiftspec.simulator.recording import Await, Recording, Segment

_POLL, _RECEIVE = Poll(), Receive()


class CountingOracle:
    """Cache lengths of a replayed program; its answers are the numbers of rows.

    sends_features: whether features go beside the target's messages.
    """

    def __init__(self, *, sends_features: bool = False) -> None:
        self._sends_features = sends_features
        self._num_sent = 0  # features
        self._prefix = dict.fromkeys(Role, 0)
        self._slots = dict.fromkeys(Role, 0)

    def context(self, role: Role) -> int:
        """Slots in use in a role's cache, prefix and tree."""
        return self._prefix[role] + self._slots[role]

    def prefill(self, role: Role, tokens: Sequence[int]) -> int:
        self._prefix[role] += len(tokens)
        return len(tokens)

    def draft(self, rows: Sequence[Row], _: int, *, fuzzy: bool = False) -> int:  # noqa: ARG002 - it fills as many slots
        self._slots[Role.DRAFT] += len(rows)
        return len(rows)

    def exit(self, rows: Sequence[Row], _: int) -> int:
        """Half a verification, which fills no slots yet."""
        return len(rows)

    def target(self, rows: Sequence[Row]) -> int:
        self._slots[Role.TARGET] += len(rows)
        return len(rows)

    def keep(self, role: Role, slots: Sequence[int], num_verified: int) -> None:
        self._prefix[role] += num_verified
        self._slots[role] = len(slots) - num_verified

    def hear(self, message: Message) -> None:
        """Take a message, which changes no length."""

    def num_features(self, _: Message) -> int:
        """Tokens in the target's prefix whose features were not sent before."""
        if not self._sends_features:
            return 0
        sent, self._num_sent = self._num_sent, self._prefix[Role.TARGET]
        return self._num_sent - sent


class PlayedTarget:
    """A target's program that commits `output` from token `num_output` on, and its place in a recording.

    prompt: the tokens before.

    `_generation` counts how often it left the order of the recording: the draft's messages from before are stale.
    `_num_lost` is the number of accepted tokens whose rows were not granted.
    """

    def __init__(self, recording: Recording, prompt: tuple[int, ...], output: Sequence[int], num_output: int) -> None:
        self._recording = recording
        self._starts = [played.start for played in recording.rounds]
        self._prompt = prompt
        self._output = output
        self._num_output = num_output
        self._is_continued = num_output > 0
        self._num_lost = 0
        self._generation = 0
        self._received: tuple[int, ...] = (-1,)

    def run(self) -> Program:
        number: int | None = 0
        while number is not None:
            number = yield from self._play(number)

    def _play(self, number: int) -> Subprogram[int | None]:
        """One round; the number of the next one, None if the output ends."""
        played = self._recording.rounds[number]
        # What a verification of too few rows left out is in the next one, before what is new.
        path = (*range(self._num_lost), *[row + self._num_lost for row in played.path])
        num_tokens = self._clipped(len(path))
        num_sent = 0
        for index, effect in enumerate(played.effects):
            if isinstance(effect, Await | Poll):
                yield from self._listen(effect)
            elif isinstance(effect, Send):
                yield Send(self._message(number, index, num_sent, num_tokens), effect.peer)
                num_sent += 1
            elif isinstance(effect, Commit):
                first = self._num_output
                self._num_output = first + num_tokens
                yield Commit(tuple(self._output[first : self._num_output]))
                if self._num_output == len(self._output):
                    if played.verdict is None and self._recording.segments:  # nothing has ended the draft's program
                        yield Send(Stop())
                    return None
            elif isinstance(effect, KeepKV) and effect.role is Role.TARGET:
                yield KeepKV(Role.TARGET, path[:num_tokens], num_tokens)
            else:
                answer = yield _fitted(effect, self._prompt, self._recording)
                if isinstance(effect, TargetForward):
                    num_accepted = sum([row < answer for row in path])
                    self._num_lost = len(path) - num_accepted
                    num_tokens = self._clipped(num_accepted)
        following = self._after(number, self._num_output)
        if following != number + 1:
            self._generation, self._num_lost = self._generation + 1, 0
        return following

    def _clipped(self, num_tokens: int) -> int:
        return min(num_tokens, len(self._output) - self._num_output)

    def _message(self, number: int, index: int, num_sent: int, num_tokens: int) -> Message:
        """A message of a round. The verdict makes the draft go on as it did before the round that follows."""
        played = self._recording.rounds[number]
        following = number + 1
        if index == played.verdict:
            num_output = self._num_output + num_tokens
            if num_output == len(self._output):
                return Stop()
            following = self._after(number, num_output)
        if following == number + 1:
            return Verdict((self._generation, played.segments[num_sent]))
        return Verdict((self._generation + 1, self._recording.rounds[following - 1].segments[-1]))

    def _after(self, number: int, num_output: int) -> int:
        """The next round. An output that is longer than the recorded one goes on with the recording's first rounds."""
        last = len(self._starts) - 1
        if number == 0 and self._is_continued:
            return min(bisect_left(self._starts, num_output % max(1, self._starts[last]), lo=1), last)
        return number + 1 if number < last else 1

    def _listen(self, effect: Await | Poll) -> Subprogram[None]:
        if isinstance(effect, Poll):
            self._note((yield effect))
            return
        while self._received < (self._generation, *effect):
            self._note((yield _RECEIVE))

    def _note(self, message: Message | None) -> None:
        if isinstance(message, Verdict):
            self._received = message.tokens


class PlayedDraft:
    """A draft's program, and its place in a recording.

    capacity: tree slots of its cache.

    `_is_owing` says whether it left out messages, since a verdict came sooner than in the recording: the target may be
    waiting for them. `_largest` is the turn with most rows so far.
    """

    def __init__(self, recording: Recording, prompt: tuple[int, ...], capacity: int) -> None:
        self._recording = recording
        self._prompt = prompt
        self._capacity = capacity
        self._generation = self._segment = self._num_sent = self._num_slots = self._most_rows = 0
        self._is_owing = False
        self._largest: list[Effect] = []

    def run(self) -> Program:
        while True:
            message = yield from self._play(self._recording.segments[self._segment])
            if isinstance(message, Stop):
                return
            assert isinstance(message, Verdict)
            self._generation, self._segment = message.tokens

    def _play(self, recorded: Segment) -> Subprogram[Message]:
        """One segment; the message that ends it."""
        self._num_sent = 0
        yield from self._perform(recorded.effects)
        turns = iter(recorded.turns)
        while (effects := self._next_turn(turns, recorded)) is not None:
            message: Message | None = yield _POLL
            if message is not None:
                self._is_owing = self._is_owing or self._num_sent < recorded.num_messages
                return message
            yield from self._perform(effects)
        if self._is_owing:
            yield self._next_message(0)
        awaited: Message = yield _RECEIVE
        return awaited

    def _next_turn(self, turns: Iterator[list[Effect]], recorded: Segment) -> list[Effect] | None:
        """The next recorded turn; after the last one the largest of all, while the draft would poll and has room."""
        effects = next(turns, None)
        if effects is not None:
            if (num_rows := _num_rows(effects)) >= self._most_rows:
                self._largest, self._most_rows = effects, num_rows
            return effects
        has_room = 0 < self._most_rows <= self._capacity - self._num_slots
        return self._largest if recorded.is_polling and has_room else None

    def _perform(self, effects: Iterable[Effect]) -> Subprogram[None]:
        for effect in effects:
            if isinstance(effect, DraftForward):
                self._num_slots += len(effect.rows)
                yield effect
            elif isinstance(effect, Send):
                yield self._next_message(effect.peer)
            else:
                if isinstance(effect, KeepKV):
                    self._num_slots = len(effect.slots) - effect.num_verified
                yield _fitted(effect, self._prompt, self._recording)

    def _next_message(self, peer: int) -> Send:
        message = Verdict((self._generation, self._segment, self._num_sent))
        self._num_sent += 1
        self._is_owing = False
        return Send(message, peer)


def _num_rows(effects: Iterable[Effect]) -> int:
    return sum(len(effect.rows) for effect in effects if isinstance(effect, DraftForward))


def _fitted(effect: Effect, prompt: tuple[int, ...], recording: Recording) -> Effect:
    """An effect; a prefill reads as many tokens more or less as the prompt has."""
    if not isinstance(effect, Prefill):
        return effect
    num_tokens = len(effect.tokens) + len(prompt) - recording.num_prompt_tokens
    return Prefill(effect.role, prompt[: max(1, num_tokens)], effect.position)
