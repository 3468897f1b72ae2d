"""Answers of the simulated models: on the target's path an AcceptanceTrace is replayed; off it, nearby positions.

The oracle mirrors each role's cache to know which tree slots lie on the path. No clock, no SimPy and no torch here.
"""

from collections.abc import Sequence
from functools import cache

from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses, TracedPrompt
from swiftspec.policies import DraftKind, Request
from swiftspec.policies.effects import Candidates, Message, Role, Row, Verdict
from swiftspec.simulator.random_streams import uniforms

_NO_TOKEN = -1  # off the path the target's choice is never followed
MASK_TOKEN = -2  # a simulated draft's, which no text holds
# Distance of positions that answer rows off the path. On the bundled traced prompts tokens/s of four tree shapes came
# within 0.5 % of those with real answers; with positions from the whole output they were up to 1.4 % low.
_NEARBY = 16


class CandidatePool:
    """A trace's candidates as the draft would return them, cut to the number that a policy requests."""

    def __init__(self, trace: AcceptanceTrace) -> None:
        self._prompts = trace.prompts
        self._cut: dict[tuple[int, Guesser, int, int], list[Candidates]] = {}
        self.draft_kind = trace.draft_kind
        self.num_ahead = trace.num_ahead

    def of(
        self, prompt_index: int, num_candidates: int, guesser: Guesser = Guesser.DRAFT, ahead: int = 0
    ) -> list[Candidates]:
        """Candidates at every output position of a prompt, `num_candidates` at most. ValueError if there are none.

        ahead: tokens before each that the draft did not know; beyond those recorded, as for the most of them.
        """
        ahead = min(ahead, self.num_ahead)
        key = (prompt_index, guesser, num_candidates, ahead)
        if key not in self._cut:
            self._cut[key] = _candidates(self._prompts[prompt_index], guesser, num_candidates, ahead)
        return self._cut[key]


def _candidates(prompt: TracedPrompt, guesser: Guesser, num_candidates: int, ahead: int) -> list[Candidates]:
    guesses = prompt.guesses.get(guesser)
    if ahead and prompt.ahead is not None:
        guesses = Guesses(prompt.ahead.tokens[:, ahead - 1], prompt.ahead.logprobs[:, ahead - 1])
    if num_candidates < 1 or guesses is None or not guesses.tokens.size:
        raise ValueError(
            f"num_candidates is {num_candidates}, but prompt {prompt.prompt_id} of the trace has none of the {guesser}"
        )
    tokens, logprobs = (column[:, :num_candidates].tolist() for column in guesses)
    return list(map(Candidates, map(tuple, tokens), map(tuple, logprobs)))


class SimulatedKVCache:
    """One role's cache: the length of its prefix, and which tree slots agree with the target's output.

    A mask agrees with any token.

    path: token at every position of the prompt and the target's own output.
    """

    def __init__(self, path: Sequence[int]) -> None:
        self._path = path
        self.prefix_length = 0
        self._num_slots = 0
        self._slots_on_path = 0  # bit per slot
        self._masks = 0  # bit per slot

    @property
    def length(self) -> int:
        return self.prefix_length + self._num_slots

    def prefill(self, num_tokens: int) -> None:
        """Add prompt tokens to the prefix."""
        self.prefix_length += num_tokens

    def look(self, rows: Sequence[Row]) -> list[bool]:
        """The result that `append` would return."""
        before = self._num_slots, self._slots_on_path, self._masks
        answers = self.append(rows)
        self._num_slots, self._slots_on_path, self._masks = before
        return answers

    def num_masks(self, row: Row) -> int:
        """Masks among a row of the last `append` and its ancestors."""
        return (row.token == MASK_TOKEN) + (row.ancestors & self._masks).bit_count()

    def append(self, rows: Sequence[Row]) -> list[bool]:
        """Give rows the next tree slots; returns whether each is on the path. ValueError for an impossible row."""
        path, prefix_length, slots_on_path = self._path, self.prefix_length, self._slots_on_path
        answers: list[bool] = []
        for slot, (token, position, ancestors) in enumerate(rows, start=self._num_slots):
            if ancestors >> slot or position != prefix_length + ancestors.bit_count():
                raise ValueError(
                    f"a row for slot {slot} at position {position} has ancestors {ancestors:#b}; "
                    f"expected earlier slots, one for each position after the prefix of {prefix_length}"
                )
            on_path = not ancestors & ~slots_on_path and position < len(path) and path[position] == token
            if token == MASK_TOKEN:
                on_path = not ancestors & ~slots_on_path
                self._masks |= 1 << slot
            slots_on_path |= on_path << slot
            answers.append(on_path)
        self._num_slots += len(answers)
        self._slots_on_path = slots_on_path
        return answers

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        in_use = [slot for slot in slots if 0 <= slot < self._num_slots]
        on_path = [self._slots_on_path >> slot & 1 for slot in in_use]
        masks = [self._masks >> slot & 1 for slot in in_use]
        if len(on_path) < len(slots) or len(set(slots)) < len(slots):
            raise ValueError(f"slots are {slots}; expected different ones of the {self._num_slots} in use")
        if num_verified > len(slots) or not all(on_path[:num_verified]) or any(masks[:num_verified]):
            raise ValueError(f"slots are {slots}; expected the first {num_verified} to hold the target's own output")
        self.prefix_length += num_verified
        self._num_slots = len(slots) - num_verified
        self._slots_on_path = sum(bit << slot for slot, bit in enumerate(on_path[num_verified:]))
        self._masks = sum(bit << slot for slot, bit in enumerate(masks[num_verified:]))


class TraceOracle:
    """Answers one request's forwards from a trace.

    On the target's path a draft row gets the candidates recorded there and a target row the next recorded token; a mask
    gets those that were recorded without the tokens that it masks. Off
    the path a draft row gets the candidates of a random recorded position nearby, since a draft's confidence depends on
    the surrounding text; and a target row gets a token that nothing follows.

    pool: the trace's candidates. prompt_index: index in the trace. seed: of the positions for rows off the path.
    """

    def __init__(self, pool: CandidatePool, prompt: TracedPrompt, *, prompt_index: int, seed: Sequence[int]) -> None:
        self._pool = pool
        self._prompt_index = prompt_index
        self._random = uniforms(seed)
        self._set_path(prompt.prompt_tokens.tolist(), prompt.target_tokens.tolist())

    def _set_path(self, prompt: list[int], output: list[int]) -> None:
        self._prompt_length = len(prompt)
        self._path = [*prompt, *output]
        self._mirrors = {role: SimulatedKVCache(self._path) for role in Role}
        self._num_sent = 0  # features

    def request(self, max_new_tokens: int | None) -> Request:
        """The traced prompt as a request; it ends where the trace does, at the latest."""
        traced = len(self._path) - self._prompt_length
        limit = traced if max_new_tokens is None else min(traced, max_new_tokens)
        prompt = tuple(self._path[: self._prompt_length])
        return Request(prompt=prompt, max_new_tokens=limit, mask_token=MASK_TOKEN)

    def context(self, role: Role) -> int:
        """Slots in use in a role's cache, prefix and tree, which the next forward attends to."""
        return self._mirrors[role].length

    def prefill(self, role: Role, tokens: Sequence[int]) -> int | None:
        """The target's choice after the last of `tokens`; None for a draft."""
        mirror, target = self._mirrors[role], self._mirrors[Role.TARGET]
        mirror.prefill(len(tokens))
        target.prefix_length = max(target.prefix_length, mirror.prefix_length)  # the draft's own view, if apart
        return self._next(mirror.prefix_length - 1) if role is Role.TARGET else None

    def hear(self, message: Message) -> None:
        """Take a message that a draft apart from its target has received: what is verified is known from it."""
        if isinstance(message, Verdict):
            self._mirrors[Role.TARGET].prefix_length += len(message.tokens)

    def num_features(self, message: Message) -> int:
        """Tokens whose features go beside a message that is sent now: all that are verified and were not sent."""
        if not (self._pool.draft_kind.reads_target and isinstance(message, Verdict)):
            return 0
        sent, self._num_sent = self._num_sent, self._mirrors[Role.TARGET].prefix_length
        return self._num_sent - sent

    def draft(self, rows: Sequence[Row], num_candidates: int, *, fuzzy: bool = False) -> tuple[Candidates, ...]:
        """Candidates per row; fewer than `num_candidates` where the trace holds fewer."""
        on_path = self._mirrors[Role.DRAFT].append(rows)
        if self._pool.num_ahead and not fuzzy:
            return self._guesses_ahead(rows, on_path, num_candidates)
        return self._guesses(rows, on_path, num_candidates, Guesser.FUZZY if fuzzy else Guesser.DRAFT)

    def _guesses_ahead(
        self, rows: Sequence[Row], on_path: Sequence[bool], num_candidates: int
    ) -> tuple[Candidates, ...]:
        """Guesses of a draft that does not know some of the tokens before each row as the target has them.

        They are the masks of a parallel draft, and for drafts on hidden states all tokens after the verified ones.
        """
        if self._pool.draft_kind is DraftKind.PARALLEL:
            distances = [self._mirrors[Role.DRAFT].num_masks(row) for row in rows]
        else:
            verified = self._mirrors[Role.TARGET].prefix_length
            distances = [max(0, row.position - verified) for row in rows]
        answers: list[Candidates] = []
        for row, follows, ahead in zip(rows, on_path, distances, strict=True):
            answers += self._guesses((row,), (follows,), num_candidates, Guesser.DRAFT, ahead)
        return tuple(answers)

    def exit(self, rows: Sequence[Row], num_candidates: int) -> tuple[Candidates, ...]:
        """Guesses of the first half of the target, per row; `target` of the same rows must follow."""
        on_path = self._mirrors[Role.TARGET].look(rows)
        return self._guesses(rows, on_path, num_candidates, Guesser.EXIT)

    def _guesses(
        self,
        rows: Sequence[Row],
        on_path: Sequence[bool],
        num_candidates: int,
        guesser: Guesser,
        ahead: int = 0,
    ) -> tuple[Candidates, ...]:
        recorded = self._recorded(num_candidates, guesser, ahead)
        random, before, windows = self._random, self._prompt_length - 1, _windows(len(recorded))
        answers: list[Candidates] = []
        for (_, position, _), follows in zip(rows, on_path, strict=True):
            index = position - before
            if not follows or not 0 <= index < len(recorded):
                first, count = windows[max(0, min(index, len(windows) - 1))]
                index = first + int(random() * count)
            answers.append(recorded[index])
        return tuple(answers)

    def _recorded(self, num_candidates: int, guesser: Guesser, ahead: int) -> list[Candidates]:
        """Candidates at every output position."""
        return self._pool.of(self._prompt_index, num_candidates, guesser, ahead)

    def target(self, rows: Sequence[Row]) -> tuple[int, ...]:
        """The target's own next token per row."""
        on_path = self._mirrors[Role.TARGET].append(rows)
        choices = [
            self._next(row.position) if follows else _NO_TOKEN for row, follows in zip(rows, on_path, strict=True)
        ]
        return tuple(choices)

    def keep(self, role: Role, slots: Sequence[int], num_verified: int) -> None:
        self._mirrors[role].keep(slots, num_verified)

    def _next(self, position: int) -> int:
        return self._path[position + 1] if position + 1 < len(self._path) else _NO_TOKEN


@cache
def _windows(num_recorded: int) -> list[tuple[int, int]]:
    """(first, number) of the positions that answer near each output position; the last entry also serves beyond it."""
    windows = []
    for index in range(num_recorded + _NEARBY):
        first = max(0, min(index - _NEARBY, num_recorded - 1))
        windows.append((first, min(num_recorded, index + _NEARBY) - first))
    return windows
