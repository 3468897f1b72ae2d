"""A sequence in a batch answers what it answers alone: on compiled kernels to the last bit, else up to rounding.

Sequences take random courses: chunks of prompts, trees, moves of slots, other kinds of forwards. At every step a random
batch of them is computed, and each of its entries alone.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Rows
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.runner import Decoder, ModelRunner
from swiftspec.kernels.cpu_library import load_library
from swiftspec.policies.effects import ForwardKind, Row
from tests.engine.checkpoints import MIXTURES, VARIANTS, VOCAB_SIZE, write_checkpoint
from tests.engine.decoders import load_kernels, load_static, load_torch
from tests.engine.forwards import by_slot

NUM_SEQUENCES = 5
CAPACITY = 300
TOP_K = 3
EXACT, FIRST_HALF, SECOND_HALF = ForwardKind.EXACT, ForwardKind.FIRST_HALF, ForwardKind.SECOND_HALF
KINDS = ((EXACT,), (EXACT,), (EXACT,), (ForwardKind.LAYER_PARALLEL,), (FIRST_HALF, SECOND_HALF))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


class Courses:
    """Sequences on random courses, each of them twice: with the others, and alone."""

    def __init__(self, together: Decoder, alone: Decoder, *, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.caches: list[KVCache] = [together.new_cache(CAPACITY) for _ in range(NUM_SEQUENCES)]
        self.own_caches: list[KVCache] = [alone.new_cache(CAPACITY) for _ in range(NUM_SEQUENCES)]
        self._together = ModelRunner(together, self.caches)
        self._alone = [ModelRunner(alone, (cache,)) for cache in self.own_caches]

    def steps(self, count: int) -> Iterator[tuple[BatchResult, list[BatchResult]]]:
        """The answer to each batch, and the answers to each of its entries alone."""
        for _ in range(count):
            kinds = KINDS[self._generator.integers(len(KINDS))]
            entries = self._entries(may_be_chunks=kinds == (EXACT,))
            together = [_forward(self._together, kind, entries) for kind in kinds]
            alone = [[self._own_forward(kind, entry) for kind in kinds] for entry in entries]
            yield from zip(together, map(list, zip(*alone, strict=True)), strict=True)
            for entry in entries:
                self._move_on(entry.sequence)

    def _own_forward(self, kind: ForwardKind, entry: Entry) -> BatchResult:
        return _forward(self._alone[entry.sequence], kind, (entry._replace(sequence=0),))

    def _entries(self, *, may_be_chunks: bool) -> tuple[Entry, ...]:
        sequences = self._generator.permutation(NUM_SEQUENCES)[: self._generator.integers(1, NUM_SEQUENCES + 1)]
        return tuple(
            self._chunk(sequence) if may_be_chunks and self._wants_chunk(sequence) else self._rows(sequence)
            for sequence in sequences.tolist()
        )

    def _wants_chunk(self, sequence: int) -> bool:
        return not self.caches[sequence].tree_length and self._generator.random() < 0.5

    def _chunk(self, sequence: int) -> Chunk:
        """Now and then of so many tokens that it is computed in pieces; of some others all logits are wanted."""
        is_long = self._generator.random() < 0.1
        num_tokens = self._generator.integers(*((129, 150) if is_long else (1, 20)))
        tokens = tuple(self._generator.integers(VOCAB_SIZE, size=num_tokens).tolist())
        return Chunk(sequence, tokens, all_logits=not is_long and self._generator.random() < 0.3)

    def _rows(self, sequence: int) -> Rows:
        """Rows that see any of the earlier nodes."""
        cache, generator = self.caches[sequence], self._generator
        rows = []
        for row, token in enumerate(generator.integers(VOCAB_SIZE, size=generator.integers(1, 7)).tolist()):
            seen = generator.integers(2, size=cache.tree_length + row).tolist()
            ancestors = sum(bit << slot for slot, bit in enumerate(seen))
            rows.append(Row(token, cache.prefix_length + sum(seen), ancestors))
        return Rows(sequence, tuple(rows))

    def _move_on(self, sequence: int) -> None:
        """Keep some of the nodes in any order; begin again when the cache fills up."""
        cache, generator = self.caches[sequence], self._generator
        slots = generator.permutation(cache.tree_length)[: generator.integers(cache.tree_length + 1)].tolist()
        num_verified = int(generator.integers(len(slots) + 1))
        is_full, is_left = cache.length > CAPACITY - 160, generator.random() < 0.2
        for model, number in ((self._together, sequence), (self._alone[sequence], 0)):
            if is_full:
                model.reset(number)
            elif not is_left:
                model.keep(number, slots, num_verified)


def _forward(model: ModelRunner, kind: ForwardKind, entries: tuple[Entry, ...]) -> BatchResult:
    result = model.forward(ForwardBatch(kind, entries, TOP_K))
    return BatchResult(tuple(logits.clone() for logits in result.logits), result.candidates)


def shapes(results: Sequence[BatchResult]) -> list[torch.Size]:
    return [logits.shape for result in results for logits in result.logits]


needs_kernels = pytest.mark.skipif(load_library() is None, reason="no C++ compiler here")


@needs_kernels
@pytest.mark.parametrize("variant", [*VARIANTS, *MIXTURES])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_kernels_answer_the_same_bits(variant: str, num_threads: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant)
    alone = load_kernels(tmp_path)
    torch.set_num_threads(num_threads)
    courses = Courses(load_kernels(tmp_path), alone, seed=num_threads)
    for together, own in courses.steps(30):
        assert shapes([together]) == shapes(own)
        assert all(torch.equal(logits, one.logits[0]) for logits, one in zip(together.logits, own, strict=True))
        assert together.candidates == tuple(one.candidates[0] for one in own)
    for cache, own_cache in zip(courses.caches, courses.own_caches, strict=True):
        used = slice(cache.length)
        assert (cache.prefix_length, cache.tree_length) == (own_cache.prefix_length, own_cache.tree_length)
        assert torch.equal(by_slot(cache)[:, :, :, used], by_slot(own_cache)[:, :, :, used])


# Products of other numbers of rows are rounded in other places, and what is cached keeps the errors. The share is of
# the logits' mean size: fp32 is off by 1e-6 or so, bfloat16 by as much as it is from fp32.
@pytest.mark.parametrize(
    ("load", "dtype", "share"),
    [
        (load_torch, torch.float32, 1e-4),
        (load_torch, torch.bfloat16, 0.1),
        (load_static, torch.float32, 1e-4),
    ],
    ids=["torch-fp32", "torch-bf16", "static"],
)
@pytest.mark.parametrize("seed", range(3))
def test_others_answer_the_same_up_to_rounding(
    load: Callable[..., Decoder], dtype: torch.dtype, share: float, seed: int, directory: Path
) -> None:
    decoder = load(directory, dtype=dtype)
    for together, own in Courses(decoder, decoder, seed=seed).steps(30):
        assert shapes([together]) == shapes(own)
        for logits, one in zip(together.logits, own, strict=True):
            assert (logits - one.logits[0]).abs().mean() < share * one.logits[0].abs().mean()
        for logits, found in zip(together.logits, together.candidates, strict=True):
            likeliest = torch.tensor([row.tokens for row in found])  # of equal ones, any
            assert torch.equal(logits.gather(1, likeliest), logits.topk(TOP_K).values)


@pytest.mark.parametrize("load", [load_kernels, load_torch, load_static])
@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (Chunk(1, (1,)), "sequence 1: cache holds a tree of 1 slots"),
        (Chunk(2, (1,) * 9), "sequence 2: cache capacity is 8 slots; 0 in use and 9 more do not fit"),
        (Rows(3, (Row(1, 0, 0),)), "sequence is 3; expected 0 to 2"),
        (Rows(2, (Row(1, 0, 0b10),)), r"sequence 2: ancestors\[0\] is 0x2"),
    ],
    ids=["tree", "room", "sequence", "ancestors"],
)
def test_a_refused_entry_leaves_all_sequences_as_they_were(
    load: Callable[..., Decoder], refused: Entry, message: str, directory: Path
) -> None:
    decoder = load(directory)
    caches = [decoder.new_cache(8) for _ in range(3)]
    model = ModelRunner(decoder, caches)
    row = Row(1, 0, 0)
    model.forward(ForwardBatch(EXACT, (Chunk(0, (1, 2)), Rows(1, (row,)))))
    before = [cache.data.clone() for cache in caches]
    with pytest.raises(ValueError, match=message):
        model.forward(ForwardBatch(EXACT, (Chunk(0, (1, 2)), refused)))
    assert [(cache.prefix_length, cache.tree_length) for cache in caches] == [(2, 0), (0, 1), (0, 0)]
    assert all(torch.equal(cache.data, data) for cache, data in zip(caches, before, strict=True))


@pytest.mark.parametrize("load", [load_kernels, load_torch, load_static])
def test_nothing_comes_between_the_halves_of_a_forward(load: Callable[..., Decoder], directory: Path) -> None:
    decoder = load(directory)
    model = ModelRunner(decoder, [decoder.new_cache(8) for _ in range(2)])
    halves = Rows(0, (Row(1, 0, 0),)), Rows(1, (Row(2, 0, 0), Row(3, 1, 0b1)))
    model.forward(ForwardBatch(FIRST_HALF, halves))
    model.forward(ForwardBatch(EXACT, halves[:1]))
    with pytest.raises(ValueError, match="second half of sequences 0, 1; expected their first half right before it"):
        model.forward(ForwardBatch(SECOND_HALF, halves))


def test_static_buffers_are_captured_for_every_sequence(directory: Path) -> None:
    decoder = load_static(directory)
    caches = [decoder.new_cache(40) for _ in range(2)]
    decoder.warm_up(8, caches)
    assert [cache.length for cache in caches] == [0, 0]
    assert [set(cache.replays) for cache in caches] == [
        {(kind, size) for kind in ForwardKind for size in (1, 2, 4, 8)}
    ] * 2


def test_a_prompt_beside_rows_is_padded_with_them(directory: Path) -> None:
    """Torch compiles products for each number of rows."""
    decoder = load_torch(directory)
    model = ModelRunner(decoder, [decoder.new_cache(200) for _ in range(2)])
    model.forward(ForwardBatch(EXACT, (Chunk(0, (1,) * 40),)))
    rows = tuple(Row(1, 40 + row, (1 << row) - 1) for row in range(6))
    for num_tokens, num_rows in ((30, 48), (128, 144)):
        model.forward(ForwardBatch(EXACT, (Rows(0, rows), Chunk(1, (2,) * num_tokens))))
        model.keep(0, (), 0)
        assert num_rows in decoder._layers._tenants[0]._workspaces  # type: ignore[union-attr]  # TorchTenants
        model.reset(1)
