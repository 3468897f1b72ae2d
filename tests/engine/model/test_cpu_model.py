import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.cpu.with_torch import TorchTenants
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.runner import Decoder
from swiftspec.policies.effects import ForwardKind
from swiftspec.timing.steps import PREFILL_SIZES
from tests.engine.checkpoints import VARIANTS, VOCAB_SIZE, reference_logits, write_checkpoint
from tests.engine.decoders import load_kernels, load_static, load_torch
from tests.engine.forwards import by_slot, forward, prefill

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
# Parent of each tree node, -1 = the prefix: two roots, branches, and a chain four deep.
PARENTS = (-1, 0, 0, 1, 3, -1, 5, 2)
Load = Callable[..., Decoder]


@pytest.fixture(scope="module", params=[load_kernels, load_torch, load_static], ids=["kernels", "torch", "static"])
def load(request: pytest.FixtureRequest) -> Load:
    loader: Load = request.param
    return loader


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def decoder(load: Load, directory: Path) -> Decoder:
    return load(directory)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(VOCAB_SIZE, size=count).tolist()
    return tokens


def causal_logits(decoder: Decoder, tokens: list[int]) -> Tensor:
    """Logits after the last of `tokens`, computed from nothing."""
    return prefill(decoder, tokens, decoder.new_cache(len(tokens))).cpu()


def path_to(node: int) -> list[int]:
    """Nodes from the tree's root down to `node`."""
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path


def ancestor_bits(node: int) -> int:
    return sum(1 << ancestor for ancestor in path_to(node)[:-1])


def forward_tree(decoder: Decoder, cache: KVCache, tokens: list[int], nodes: range) -> Tensor:
    """One forward of the nodes `nodes` of the tree above; node n has token `tokens[n]` and takes slot n."""
    positions = [cache.prefix_length + len(path_to(node)) - 1 for node in nodes]
    bits = [ancestor_bits(node) for node in nodes]
    return forward(decoder, [tokens[node] for node in nodes], positions, bits, cache).cpu()


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, load: Load, tmp_path: Path) -> None:
    tokens = random_tokens(150)
    expected = reference_logits(write_checkpoint(tmp_path, variant), tokens)
    decoder = load(tmp_path)
    cache = decoder.new_cache()
    assert_close(prefill(decoder, tokens[:140], cache), expected[139])
    stepped = forward(decoder, tokens[140:], range(140, 150), [(1 << row) - 1 for row in range(10)], cache)
    assert_close(stepped, expected[140:])


# The share is of the logits' mean size; transformers in bf16 is off by 0.06 to 0.07.
@pytest.mark.parametrize(
    ("load_rounded", "dtype", "share"),
    [
        (load_kernels, torch.bfloat16, 0.05),
        (load_static, torch.bfloat16, 0.08),
        (load_static, torch.float16, 0.01),
    ],
    ids=["packed-bf16", "static-bf16", "static-fp16"],
)
@pytest.mark.parametrize("num_tokens", [60, 500])
def test_rounded_logits_are_close_to_fp32(
    load_rounded: Load, dtype: torch.dtype, share: float, num_tokens: int, directory: Path
) -> None:
    tokens = random_tokens(num_tokens)
    exact = causal_logits(load_kernels(directory), tokens)
    rounded = causal_logits(load_rounded(directory, dtype=dtype), tokens)
    assert (rounded - exact).abs().mean() < share * exact.abs().mean()


def test_tree_forward_equals_a_causal_forward_of_each_path(decoder: Decoder) -> None:
    prefix, nodes = random_tokens(23), random_tokens(len(PARENTS), seed=1)
    cache = decoder.new_cache(64)
    prefill(decoder, prefix, cache)
    logits = forward_tree(decoder, cache, nodes, range(len(PARENTS)))
    for node in range(len(PARENTS)):
        assert_close(logits[node], causal_logits(decoder, prefix + [nodes[step] for step in path_to(node)]))


def test_tree_grown_over_several_forwards_equals_one_forward(decoder: Decoder) -> None:
    prefix, nodes = random_tokens(23), random_tokens(len(PARENTS), seed=1)
    whole, grown = decoder.new_cache(64), decoder.new_cache(64)
    prefill(decoder, prefix, whole)
    prefill(decoder, prefix, grown)
    expected = forward_tree(decoder, whole, nodes, range(len(PARENTS)))
    parts = [forward_tree(decoder, grown, nodes, part) for part in (range(1), range(1, 4), range(4, 8))]
    assert_close(torch.cat(parts), expected)


def test_decoding_after_keep_equals_a_fresh_prefill(decoder: Decoder) -> None:
    prefix, nodes = random_tokens(23), random_tokens(len(PARENTS), seed=1)
    cache = decoder.new_cache(64)
    prefill(decoder, prefix, cache)
    forward_tree(decoder, cache, nodes, range(len(PARENTS)))
    # Nodes 0 and 2 are verified, 7 hangs below 2.
    cache.keep((0, 2, 7), 2)
    assert (cache.prefix_length, cache.tree_length) == (25, 1)
    logits = forward(decoder, [11], [26], [0b1], cache)
    assert_close(logits[0], causal_logits(decoder, [*prefix, nodes[0], nodes[2], nodes[7], 11]))


def test_whole_greedy_decoding_over_trees_is_the_autoregressive_one(decoder: Decoder) -> None:
    prompt = random_tokens(9)
    alone: list[int] = []
    for _ in range(40):
        alone.append(int(causal_logits(decoder, prompt + alone).argmax()))
    cache = decoder.new_cache(96)
    prefill(decoder, prompt[:-1], cache)
    last, text = prompt[-1], list[int]()
    while len(text) < 40:
        # A root, one right and two wrong guesses below it.
        right = alone[len(text)]
        guesses = [last, (right + 1) % VOCAB_SIZE, right, (right + 2) % VOCAB_SIZE]
        depth = cache.prefix_length
        choices = forward(decoder, guesses, [depth, *[depth + 1] * 3], [0, 1, 1, 1], cache).argmax(-1).tolist()
        cache.keep((0, 2), 2)
        text += [choices[0], choices[2]]
        last = text[-1]
    assert text[:40] == alone


def test_chunked_prefill_equals_one_row_at_a_time(decoder: Decoder) -> None:
    tokens = random_tokens(300)
    cache = decoder.new_cache(300)
    logits = torch.empty(0)
    for position, token in enumerate(tokens):
        logits = forward(decoder, [token], [position], [0], cache)
        cache.keep((0,), 1)
    assert_close(causal_logits(decoder, tokens), logits[0])


@pytest.mark.parametrize("num_tokens", [31, 32, 33, 48, 49, 65, 96, 97, 127, 128, 161])
def test_a_prompt_of_any_length_fills_its_slots_alone_up_to_the_end_of_the_cache(
    num_tokens: int, directory: Path
) -> None:
    decoder, tokens = CpuDecoder(directory), random_tokens(num_tokens)
    reference = reference_logits(directory, tokens)[-1]
    full, roomy = decoder.new_cache(num_tokens), decoder.new_cache(num_tokens + 130)
    for cache in (full, roomy):
        assert_close(prefill(decoder, tokens, cache), reference)
        assert cache.length == num_tokens
    assert by_slot(full)[:, :, :, :num_tokens].all()
    assert not by_slot(roomy)[:, :, :, num_tokens:].any()


def test_no_prompt_needs_what_was_not_made_when_the_model_was_warmed_up(directory: Path) -> None:
    decoder = load_torch(directory)
    assert isinstance(decoder, CpuDecoder)
    assert isinstance(decoder._layers, TorchTenants)
    workspaces = decoder._layers._tenants[0]._workspaces
    cache = decoder.new_cache(256)
    decoder.warm_up(32, (cache,))
    assert cache.length == 0
    warm = set(workspaces)
    assert warm == set(PREFILL_SIZES)
    for num_tokens in range(1, 150):
        cache.reset()
        prefill(decoder, [1] * num_tokens, cache)
    assert set(workspaces) == warm


def test_cache_longer_than_the_models_context_is_allowed(directory: Path, decoder: Decoder) -> None:
    cache = decoder.new_cache(1000)
    assert cache.capacity == 1000
    tokens = random_tokens(600)
    assert_close(causal_logits(decoder, tokens), reference_logits(directory, tokens)[-1])


def test_halves_of_a_forward_are_the_forward(decoder: Decoder) -> None:
    prefix, nodes = random_tokens(23), random_tokens(len(PARENTS), seed=1)
    bits = [ancestor_bits(node) for node in range(len(PARENTS))]
    cache = decoder.new_cache(64)
    prefill(decoder, prefix, cache)
    positions = [len(prefix) + len(path_to(node)) - 1 for node in range(len(PARENTS))]
    whole = forward(decoder, nodes, positions, bits, cache).cpu()
    for _ in range(2):  # the second time, a GPU has both recorded
        cache.keep((), 0)
        half = forward(decoder, nodes, positions, bits, cache, kind=ForwardKind.FIRST_HALF).cpu()
        assert cache.tree_length == 0
        assert (half - whole).abs().max() > 0.1
        assert_close(forward(decoder, nodes, positions, bits, cache, kind=ForwardKind.SECOND_HALF), whole)
        assert cache.tree_length == len(PARENTS)


def test_one_layer_has_an_empty_first_half(load: Load, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "llama")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = load_file(directory / "model.safetensors")
    kept = {name: each for name, each in weights.items() if ".layers." not in name or ".layers.0." in name}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    decoder = load(directory)
    cache = decoder.new_cache(8)
    whole = forward(decoder, [3], [0], [0], cache).cpu()
    cache.keep((), 0)
    forward(decoder, [3], [0], [0], cache, kind=ForwardKind.FIRST_HALF)
    assert_close(forward(decoder, [3], [0], [0], cache, kind=ForwardKind.SECOND_HALF), whole)


def test_warm_up_leaves_the_cache_empty(decoder: Decoder) -> None:
    cache = decoder.new_cache(8)
    decoder.warm_up(8, (cache,))
    assert cache.length == 0


def test_overflow_is_refused_before_anything_is_written(decoder: Decoder) -> None:
    cache = decoder.new_cache(4)
    prefill(decoder, [1, 2, 3], cache)
    with pytest.raises(ValueError, match="capacity is 4 slots; 3 in use and 2 more do not fit"):
        forward(decoder, [1, 2], [3, 3], [0, 0], cache)
    assert cache.length == 3
    with pytest.raises(ValueError, match="2 more do not fit"):
        prefill(decoder, [1, 2], cache)


def test_prefill_onto_a_tree_is_refused(decoder: Decoder) -> None:
    cache = decoder.new_cache(4)
    forward(decoder, [1], [0], [0], cache)
    with pytest.raises(ValueError, match="holds a tree of 1 slots"):
        prefill(decoder, [1], cache)


def test_ancestors_beyond_the_tree_are_refused(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match=r"ancestors\[0\] is 0x2"):
        forward(decoder, [1], [0], [0b10], decoder.new_cache(8))
