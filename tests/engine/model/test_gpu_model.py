"""Static buffers of a decoder: capture sizes, padding, masks of words, moves on the device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftspec.devices.local import TREE_SLOTS
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import reference_ops
from swiftspec.engine.model.gpu.weights import FORMATS, WeightFormat
from swiftspec.engine.model.runner import Decoder, ModelRunner
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.effects import ForwardKind, Role
from tests.engine.checkpoints import MIXTURES, VARIANTS, VOCAB_SIZE, reference_logits, write_checkpoint
from tests.engine.forwards import candidates, forward, prefill
from tests.engine.pairs import write_pair
from tools.run_alone import run_alone

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-4
PREFIX = tuple(range(1, 24))
Pair = tuple[Decoder, Decoder]


def load_static(directory: Path) -> GpuDecoder:
    weight_format = WeightFormat(dtype=torch.float32)
    return GpuDecoder.load(directory, weight_format=weight_format, device=DEVICE, ops=reference_ops())


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same model twice."""
    directory = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return CpuDecoder(directory), load_static(directory)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> GpuDecoder:
    return load_static(write_checkpoint(tmp_path_factory.mktemp("llama"), "llama"))


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=TOLERANCE)


def chain(num_rows: int, *, tree_length: int = 0) -> tuple[list[int], list[int], list[int]]:
    """A chain of rows, after `tree_length` earlier ones."""
    slots = range(tree_length, tree_length + num_rows)
    tokens = [(7 * slot + 3) % VOCAB_SIZE for slot in slots]
    return tokens, [len(PREFIX) + slot for slot in slots], [(1 << slot) - 1 for slot in slots]


@pytest.mark.parametrize("kind", [ForwardKind.EXACT, ForwardKind.LAYER_PARALLEL])
@pytest.mark.parametrize("parts", [(1, 2, 3, 5, 9), (31, 33), (63, 1), (50, 9, 5)], ids=str)
def test_logits_do_not_depend_on_padding(pair: Pair, parts: Sequence[int], kind: ForwardKind) -> None:
    """Chains that fill the masks' words up to the last bit, in forwards that do and do not fill their capture size."""
    caches = [decoder.new_cache(len(PREFIX) + 64) for decoder in pair]
    for decoder, cache in zip(pair, caches, strict=True):
        prefill(decoder, PREFIX, cache)
    done = 0
    for num_rows in parts:
        rows = chain(num_rows, tree_length=done)
        expected, actual = (
            forward(decoder, *rows, cache, kind=kind) for decoder, cache in zip(pair, caches, strict=True)
        )
        assert_close(actual, expected)
        done += num_rows


def test_every_forward_fills_its_capture_size_whatever_the_tree_holds(static: GpuDecoder) -> None:
    cache = static.new_cache(100)
    for num_rows in (9, 48, 5, 2):
        forward(static, *chain(num_rows, tree_length=cache.tree_length), cache)
    assert set(cache.replays) == {(ForwardKind.EXACT, size) for size in (16, 64, 8, 2)}


def test_each_row_sees_its_own_words_only(pair: Pair) -> None:
    generator = torch.Generator().manual_seed(0)
    caches = [decoder.new_cache(256) for decoder in pair]
    tree = 0
    for num_rows in (13, 20, 11, 20):
        visible = torch.randint(2, (num_rows, tree), generator=generator).tolist()
        bits = [sum(bit << slot for slot, bit in enumerate(row)) for row in visible]
        rows = ([slot % VOCAB_SIZE for slot in range(num_rows)], [70] * num_rows, bits)
        expected, actual = (forward(decoder, *rows, cache) for decoder, cache in zip(pair, caches, strict=True))
        assert_close(actual, expected)
        tree += num_rows


@pytest.mark.parametrize(
    ("slots", "num_verified"), [((2, 0, 1), 1), ((0, 1, 5, 3, 4), 4), ((7,), 1), ((1, 2, 3, 4, 5, 6, 7), 0), ((), 0)]
)
def test_kept_slots_are_those_of_the_other_cache(pair: Pair, slots: tuple[int, ...], num_verified: int) -> None:
    caches = [decoder.new_cache(64) for decoder in pair]
    logits = []
    for decoder, cache in zip(pair, caches, strict=True):
        prefill(decoder, PREFIX, cache)
        forward(decoder, *chain(8), cache)
        cache.keep(slots, num_verified)
        position = cache.prefix_length + cache.tree_length
        everything = (1 << cache.tree_length) - 1
        logits.append(forward(decoder, [5], [position], [everything], cache))
    assert_close(logits[1], logits[0])
    assert [cache.length for cache in caches] == [len(PREFIX) + len(slots) + 1] * 2


@pytest.mark.parametrize("k", [3, 1000])
def test_candidates_are_those_of_the_other_decoder(pair: Pair, k: int) -> None:
    answers = []
    for decoder in pair:
        cache, found = decoder.new_cache(64), []
        prefill(decoder, PREFIX, cache)
        for num_rows in (3, 5, 3):
            rows = chain(num_rows, tree_length=cache.tree_length)
            found.append(candidates(decoder, rows, cache, k))
        rows = chain(2, tree_length=cache.tree_length)
        found.append(candidates(decoder, rows, cache, k, kind=ForwardKind.FIRST_HALF))
        answers.append(found)
    for expected, actual in zip(*answers, strict=True):
        assert [row.tokens for row in actual] == [row.tokens for row in expected]
        logprobs = [torch.tensor([row.logprobs for row in rows]) for rows in (actual, expected)]
        torch.testing.assert_close(*logprobs, rtol=0, atol=TOLERANCE)


def test_caches_of_one_decoder_do_not_meet(static: GpuDecoder) -> None:
    caches = [static.new_cache(64) for _ in range(2)]
    alone = static.new_cache(64)
    prefill(static, PREFIX, alone)
    expected = forward(static, *chain(3), alone).cpu()
    for cache, prefix in zip(caches, (PREFIX, PREFIX[::-1]), strict=True):
        prefill(static, prefix, cache)
    for cache, same in ((caches[1], False), (caches[0], True)):
        assert torch.allclose(forward(static, *chain(3), cache).cpu(), expected, atol=TOLERANCE) is same


def test_a_reset_cache_is_as_good_as_new(static: GpuDecoder) -> None:
    cache = static.new_cache(64)
    prefill(static, PREFIX, cache)
    expected = forward(static, *chain(3), cache).cpu()
    forward(static, *chain(7, tree_length=3), cache)
    cache.reset()
    prefill(static, PREFIX, cache)
    assert_close(forward(static, *chain(3), cache), expected)


def test_prompts_of_several_chunks_are_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftspec.engine.model.gpu.model._PREFILL_ROWS", 10)
    expected, actual = (prefill(decoder, PREFIX, decoder.new_cache(32)) for decoder in pair)
    assert_close(actual, expected)


def test_warm_up_records_every_kind_in_every_capture_size_and_leaves_the_cache_empty(static: GpuDecoder) -> None:
    cache = static.new_cache(40)
    static.warm_up(64, (cache,))
    assert cache.length == 0
    kinds = tuple(ForwardKind)
    assert set(cache.replays) == {(kind, capture_size) for kind in kinds for capture_size in (1, 2, 4, 8, 16, 32)}
    assert set(cache.candidates) == {
        (kind, capture_size, 8) for kind in kinds[:3] for capture_size in (1, 2, 4, 8, 16, 32)
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (chain(65), "cache has 64 tree slots; 0 in use and 65 more do not fit"),
        (([1], [100], [0]), "position is 100; expected 0 to 99"),
        (([VOCAB_SIZE], [0], [0]), f"token is {VOCAB_SIZE}; expected 0 to {VOCAB_SIZE - 1}"),
    ],
    ids=["rows", "position", "token"],
)
def test_what_a_kernel_would_not_notice_is_refused(
    static: GpuDecoder, rows: tuple[list[int], list[int], list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        forward(static, *rows, static.new_cache(100, tree_slots=64))


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_a_prompt_of_other_tokens_is_refused(static: GpuDecoder, token: int) -> None:
    with pytest.raises(ValueError, match=f"token is {token}"):
        prefill(static, [1, token], static.new_cache(8))


def test_more_rows_than_the_largest_capture_size_are_refused(static: GpuDecoder) -> None:
    with pytest.raises(ValueError, match="forward has 65 rows; expected at most 64"):
        forward(static, *chain(65), static.new_cache(100, tree_slots=128))


@pytest.mark.parametrize("tree_slots", [0, 257])
def test_a_tree_beyond_the_kernels_masks_is_refused(tmp_path: Path, tree_slots: int) -> None:
    directory = write_checkpoint(tmp_path, "llama")
    decoder = GpuDecoder.load(directory, weight_format=WeightFormat(dtype=torch.float32), device=DEVICE)
    with pytest.raises(ValueError, match=f"tree_slots is {tree_slots}; expected 1 to 256, which the kernels' masks"):
        decoder.new_cache(100, tree_slots=tree_slots)


def test_masks_are_as_wide_as_the_tree(pair: Pair) -> None:
    packed, static = pair
    assert isinstance(static, GpuDecoder)
    caches = packed.new_cache(256), static.new_cache(256, tree_slots=150)
    for done in range(0, 150, 50):
        rows = chain(50, tree_length=done)
        assert_close(forward(static, *rows, caches[1]), forward(packed, *rows, caches[0]))


def test_prefill_takes_the_layout_that_attention_answers_in_on_a_gpu(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory-efficient kernel answers [1, rows, groups, D], transposed; a CPU's answer is contiguous."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def transposed(*args: Any, **options: Any) -> Tensor:
        return attention(*args, **options).transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", transposed)
    packed, static = pair
    logits, expected = (prefill(decoder, PREFIX, decoder.new_cache(64)) for decoder in (static, packed))
    assert_close(logits, expected)


class _Models:
    """The models of `write_pair`, made anew for a driver."""

    def __init__(self, directory: Path) -> None:
        directories = write_pair(directory, architecture="llama")
        self.static = dict(zip(Role, map(load_static, directories), strict=True))
        self.packed = dict(zip(Role, map(CpuDecoder, directories), strict=True))

    def generate(self, policy: Policy, decoders: dict[Role, Decoder], sampler: Sampler) -> list[int]:
        tokens: list[int] = []
        models = {role: ModelRunner(decoder, (decoder.new_cache(200),)) for role, decoder in decoders.items()}
        request = Request(prompt=(5, 17, 3, 88, 41), max_new_tokens=40, mask_token=VOCAB_SIZE - 1)
        program = policy.programs(request)[Role.TARGET]
        run_alone(program, models=models, sampler=sampler, commit=tokens.extend)
        return tokens


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> _Models:
    return _Models(tmp_path_factory.mktemp("pair"))


IN_ONE_PROCESS = tuple(
    policy
    for policy in map(make_policy, POLICIES)
    if policy.layout is not Layout.DISAGGREGATED
    and DraftKind.SERIAL in policy.drafts
    and max(policy.draft_rows, policy.target_rows) <= TREE_SLOTS["cuda"]
)
SAMPLERS = {
    "greedy": Sampler(),
    "sampled": Sampler(temperature=0.8, top_p=0.95, seed=1),
    "residual": Sampler(temperature=1.0, acceptance="residual"),
}


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("policy", IN_ONE_PROCESS, ids=str)
def test_policies_say_the_same_on_either_decoder(models: _Models, policy: Policy, sampler: Sampler) -> None:
    expected = models.generate(policy, dict(models.packed), sampler)
    assert len(expected) == 40
    assert models.generate(policy, dict(models.static), sampler) == expected


@pytest.mark.parametrize("variant", [*VARIANTS, *MIXTURES])
def test_every_variant_has_the_other_decoders_logits(variant: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, variant)
    packed, static = CpuDecoder(directory), load_static(directory)
    caches = packed.new_cache(64), static.new_cache(64)
    for kind in (ForwardKind.EXACT, ForwardKind.LAYER_PARALLEL):
        rows = chain(6, tree_length=caches[0].tree_length)
        assert_close(forward(static, *rows, caches[1], kind=kind), forward(packed, *rows, caches[0], kind=kind))


@pytest.mark.parametrize("variant", MIXTURES)
def test_experts_have_transformers_logits_in_prompts_and_trees(variant: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, variant)
    rows = chain(9)
    expected = reference_logits(directory, [*PREFIX, *rows[0]])
    static = load_static(directory)
    cache = static.new_cache(64)
    assert_close(prefill(static, PREFIX, cache), expected[len(PREFIX) - 1])
    assert_close(forward(static, *rows, cache), expected[len(PREFIX) :])


@pytest.mark.parametrize("dtype", ["int4", "fp8"])
def test_quantised_experts_are_refused(dtype: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "mixtral")
    with pytest.raises(ValueError, match=f"dtype is '{dtype}'; expected one of float32, .* for a model with experts"):
        GpuDecoder.load(directory, weight_format=FORMATS[dtype], device=DEVICE)
