"""Fake models, and a cache that knows what every slot was computed from. No torch, no clock.

The cache asserts what a driver may assume of a policy: a row sees its own path and nothing else, tree slots stay within
the policy's bounds, and a compaction keeps what the verified tokens allow and nothing more.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.effects import Candidates, Row

VOCAB_SIZE = 11
MASK_TOKEN = -1  # a request's, where a test gives none

Path = tuple[int, ...]  # tokens from the start of the prompt


def continued(path: Path, length: int, target: Callable[[Path], int]) -> Path:
    """The path with the target's own tokens behind it, up to this length at least.

    It is what a target knows that keeps KV before it commits.
    """
    while len(path) < length:
        path += (target(path),)
    return path


@dataclass(frozen=True, kw_only=True)
class FakeTarget:
    """Any function of the whole path will do."""

    seed: int

    def __call__(self, path: Path) -> int:
        return hash((self.seed, *path)) % VOCAB_SIZE

    def output(self, request: Request) -> Path:
        """The model's own output, token by token."""
        path = request.prompt
        for _ in range(request.max_new_tokens):
            path += (self(path),)
            if path[-1] in request.eos_token_ids:
                break
        return path[len(request.prompt) :]


@dataclass(frozen=True, kw_only=True)
class FakeDraft:
    """Ranks the target's token at `ranks[position]`, over and over; None leaves it out of the candidates.

    Log-probs fall by up to `steepness` / 16 from candidate to candidate; sums of them are exact, and ties happen.
    """

    target: FakeTarget
    ranks: tuple[int | None, ...]
    steepness: int
    seed: int

    def __call__(self, path: Path, num_candidates: int) -> Candidates:
        rng = random.Random(hash((self.seed, *path)))
        wanted = self.target(path)
        tokens = [token for token in rng.sample(range(VOCAB_SIZE), VOCAB_SIZE) if token != wanted]
        rank = self.ranks[len(path) % len(self.ranks)]
        if rank is not None:
            tokens.insert(rank, wanted)
        tokens = tokens[:num_candidates]
        return Candidates(tuple(tokens), tuple(accumulate(-rng.randint(0, self.steepness) / 16 for _ in tokens)))


@dataclass(frozen=True, kw_only=True)
class FakeParallelDraft:
    """As a `FakeDraft` that guesses masked tokens first; what it takes them for is the target's own choice."""

    serial: FakeDraft

    @property
    def target(self) -> FakeTarget:
        return self.serial.target

    def __call__(self, path: Path, num_candidates: int) -> Candidates:
        known: Path = ()
        for token in path:
            known += (self.target(known) if token == MASK_TOKEN else token,)
        return self.serial(known, num_candidates)


@dataclass(frozen=True, eq=False)
class Slot:
    """A cache entry: the path it was computed from, its own token last. Equal to itself alone."""

    path: Path


class FakeCache:
    """[prefix | tree], as the engine's. `forgetful`: what may be verified some day may be thrown away all the same.

    rereads: what was drafted may be computed again, as heads do once it is verified.
    """

    def __init__(self, tree_slots: int, *, forgetful: bool = False, rereads: bool = False) -> None:
        self._forgetful, self._rereads = forgetful, rereads
        self.prefix: list[Slot] = []
        self.tree: list[Slot] = []
        self._tree_slots = tree_slots

    def prefill(self, tokens: Path, position: int = 0) -> Path:
        """Extend the prefix; its path."""
        assert tokens
        assert position == len(self.prefix)
        assert not self.tree
        path = (*self.path, *tokens)
        self.prefix += [Slot(path[:length]) for length in range(position + 1, len(path) + 1)]
        return path

    @property
    def path(self) -> Path:
        """Of the prefix."""
        return self.prefix[-1].path if self.prefix else ()

    def forward(self, rows: Sequence[Row]) -> list[Path]:
        """Append the rows; the path of each."""
        assert rows
        first = len(self.tree)
        for row in rows:
            assert row.ancestors < 1 << len(self.tree), "a row sees slots that are filled"
            path = self.path
            for number, slot in enumerate(self.tree):
                if row.ancestors >> number & 1:
                    assert slot.path[:-1] == path, "a row sees exactly its own path"
                    path = slot.path
            assert row.position == len(path)
            path = (*path, row.token)
            assert self._rereads or all(slot.path != path for slot in self.tree), "nothing is computed twice"
            self.tree.append(Slot(path))
        assert len(self.tree) <= self._tree_slots
        return [slot.path for slot in self.tree[first:]]

    def paths(self, rows: Sequence[Row]) -> list[Path]:
        """Answer that `forward` would give."""
        answers = self.forward(rows)
        del self.tree[len(self.tree) - len(rows) :]
        return answers

    def keep(self, slots: Sequence[int], num_verified: int, known: Path) -> None:
        """Compact; `known` are the prompt and all verified tokens that this role knows of, the root last."""
        assert len(set(slots)) == len(slots)
        assert 0 <= num_verified <= len(slots)
        kept = [self.tree[slot] for slot in slots]
        dropped = [slot for slot in self.tree if slot not in kept]
        self.prefix += kept[:num_verified]
        self.tree = kept[num_verified:]
        assert [slot.path for slot in self.prefix] == [known[: i + 1] for i in range(len(self.prefix))]
        for slot in self.tree:
            assert slot.path[: len(known)] == known, "what stays in the tree is the root or lies below it"
        for slot in [] if self._forgetful else dropped:
            common = min(len(slot.path), len(known))
            of_use = slot.path[:common] == known[:common] and MASK_TOKEN not in slot.path
            assert not of_use, "what is verified or may be some day is not thrown away"


def requests() -> st.SearchStrategy[Request]:
    """Prompts of any length from 1, limits from 1, any tokens (or none) as end of sequence."""
    tokens = st.integers(0, VOCAB_SIZE - 1)
    return st.builds(
        Request,
        prompt=st.lists(tokens, min_size=1, max_size=5).map(tuple),
        max_new_tokens=st.integers(1, 32),
        eos_token_ids=st.just(frozenset()) | st.frozensets(tokens, max_size=2),
    )


def drafts() -> st.SearchStrategy[FakeDraft]:
    """Any acceptance pattern: perfect, useless, or anything between, position by position."""
    seeds = st.integers(0, 2**16)
    return st.builds(
        FakeDraft,
        target=st.builds(FakeTarget, seed=seeds),
        ranks=st.lists(st.sampled_from((0, 0, 0, 0, 0, 0, 1, 1, 2, 5, None)), min_size=1, max_size=8).map(tuple),
        steepness=st.sampled_from((0, 4, 16, 64)),
        seed=seeds,
    )
