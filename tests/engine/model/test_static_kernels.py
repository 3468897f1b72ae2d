"""Whole forwards of kernels against the same in plain torch; on a GPU compiled and recorded, else interpreted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

pytest.importorskip("swiftspec.kernels.skinny_gemm", reason="kernels need Triton")

from swiftspec.engine.model.gpu.kv_cache import GpuKVCache
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import ops_for, reference_ops, triton_ops
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.policies.effects import ForwardKind
from tests.engine.forwards import forward, prefill
from tests.kernels.gate import compiler
from tools.compiling import MAX_SHARED_BYTES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("one_thread")

OPS = triton_ops(pdl=False) if DEVICE == "cpu" else ops_for(torch.device(DEVICE))
TOLERANCE = 1e-3  # of logits about 1.5, fp32; quantised weights are the same on both sides
PREFIX = tuple(range(1, 8))
VOCAB_SIZE = 211
_CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
}
Pair = tuple[GpuDecoder, GpuDecoder]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Widths that int4 can be packed in: multiples of 256."""
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "initializer_range": 0.1,
    }
    found = {}
    for name, (config_class, model_class) in _CLASSES.items():
        torch.manual_seed(0)
        found[name] = tmp_path_factory.mktemp(name)
        model_class(config_class(**shape)).float().save_pretrained(found[name])
    return found


def load_pair(directory: Path, weight_format: str) -> Pair:
    """In plain torch and in kernels, both in fp32: the interpreter multiplies bf16 wrongly."""
    chosen = replace(FORMATS[weight_format], dtype=torch.float32)
    first, second = (
        GpuDecoder.load(directory, weight_format=chosen, device=DEVICE, ops=ops) for ops in (reference_ops(), OPS)
    )
    return first, second


def prefilled(pair: Pair) -> tuple[GpuKVCache, GpuKVCache]:
    first, second = (decoder.new_cache(200) for decoder in pair)
    for decoder, cache in zip(pair, (first, second), strict=True):
        prefill(decoder, PREFIX, cache)
    return first, second


def chain(num_rows: int, cache: GpuKVCache) -> tuple[list[int], list[int], list[int]]:
    slots = range(cache.tree_length, cache.tree_length + num_rows)
    return (
        [(7 * slot + 3) % VOCAB_SIZE for slot in slots],
        [cache.length + row for row in range(num_rows)],
        [(1 << slot) - 1 for slot in slots],
    )


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert expected.abs().mean() > 0.5
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("architecture", "weight_format"),
    [("llama", "float32"), ("qwen3", "float32"), ("llama", "fp8"), ("qwen3", "int4"), ("mixtral", "float32")],
)
def test_a_round_is_that_of_plain_torch(architecture: str, weight_format: str, directories: dict[str, Path]) -> None:
    """Prefill, a tree grown twice, a move, and a forward after it."""
    pair = load_pair(directories[architecture], weight_format)
    caches = prefilled(pair)
    for rows in (([3, 4, 5], [7, 8, 8], [0, 1, 1]), ([6, 7], [9, 9], [0b11, 0b101])):
        expected, actual = (forward(decoder, *rows, cache) for decoder, cache in zip(pair, caches, strict=True))
        assert_close(actual, expected)
    for cache in caches:
        cache.keep((0, 2, 4), 2)
    rows = ([8], [10], [0b1])
    expected, actual = (forward(decoder, *rows, cache) for decoder, cache in zip(pair, caches, strict=True))
    assert_close(actual, expected)


def test_trees_up_to_the_last_slot_are_those_of_plain_torch(directories: dict[str, Path]) -> None:
    pair = load_pair(directories["llama"], "float32")
    caches = prefilled(pair)
    for num_rows in (50, 9, 5):
        rows = chain(num_rows, caches[0])
        expected, actual = (forward(decoder, *rows, cache) for decoder, cache in zip(pair, caches, strict=True))
        assert_close(actual, expected)


def test_fuzzy_forwards_and_halves_are_those_of_plain_torch(directories: dict[str, Path]) -> None:
    pair = load_pair(directories["llama"], "float32")
    caches = prefilled(pair)
    rows = chain(3, caches[0])
    for kind in (ForwardKind.LAYER_PARALLEL, ForwardKind.FIRST_HALF, ForwardKind.SECOND_HALF):
        answers = []
        for decoder, cache in zip(pair, caches, strict=True):
            answers.append(forward(decoder, *rows, cache, kind=kind).clone())
            if kind is ForwardKind.LAYER_PARALLEL:
                cache.keep((), 0)
        assert_close(answers[1], answers[0])


def test_candidates_are_those_of_plain_torch() -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    (logprobs, tokens), (expected_logprobs, expected_tokens) = (
        ops.top_candidates(logits, 8) for ops in (OPS, reference_ops())
    )
    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(logprobs, expected_logprobs)


def test_a_forward_for_hopper_is_few_launches_a_layer_that_each_start_early() -> None:
    gates = Path(__file__).parent / "gates"
    with compiler() as process:
        kernels, of_experts = (process.compiled(gates / name) for name in ("forward.py", "experts.py"))
    product, attention = "_int4_gemm_kernel", ("_rope_kv_write_kernel", "_tree_attention_kernel")
    # A new cache's; the layer's; before the head, which cuBLAS multiplies.
    assert [kernel.name for kernel in kernels] == [
        "_keep_slots_kernel",
        *("_rms_norm_kernel", product, *attention, product, "_rms_norm_kernel", product, product),
        "_rms_norm_kernel",
    ]
    # Here cuBLAS multiplies before and after attention, and by the router.
    assert [kernel.name for kernel in of_experts] == [
        "_keep_slots_kernel",
        *("_rms_norm_kernel", *attention, "_rms_norm_kernel"),
        *("_route_kernel", "_experts_kernel", "_experts_kernel", "_sum_slots_kernel"),
        "_rms_norm_kernel",
    ]
    for kernel in (*kernels, *of_experts):
        assert kernel.stack_bytes == 0
        assert kernel.shared_bytes <= MAX_SHARED_BYTES
        assert kernel.count(r"griddepcontrol\.wait") >= 1
