"""Mixtures of experts on CPUs are those of transformers, by compiled kernels and by torch.

That a row's result does not depend on others: test_batches. On several ranks: test_parallel.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.cpu.kernels import KernelLayers
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.kernels.cpu_library import load_library
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.timing.steps import PREFILL_CHUNK
from tests.engine.checkpoints import MIXTURES, VOCAB_SIZE, reference_logits, reference_model, write_checkpoint
from tests.engine.decoders import load_kernels, load_torch
from tests.engine.forwards import forward, prefill

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TOKENS = 150  # more than one piece of a prompt, where torch computes
Load = Callable[..., CpuDecoder]
needs_kernels = pytest.mark.skipif(load_library() is None, reason="no C++ compiler here")


@pytest.fixture(scope="module", params=[load_kernels, load_torch], ids=["kernels", "torch"])
def load(request: pytest.FixtureRequest) -> Load:
    loader: Load = request.param
    return loader


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {name: write_checkpoint(tmp_path_factory.mktemp(name), name) for name in MIXTURES}


@pytest.fixture(scope="module")
def text() -> list[int]:
    drawn: list[int] = torch.randint(VOCAB_SIZE, (NUM_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    return drawn


@pytest.mark.parametrize("variant", MIXTURES)
def test_logits_are_those_of_transformers(
    variant: str, load: Load, directories: Mapping[str, Path], text: list[int]
) -> None:
    expected = reference_logits(directories[variant], text)
    decoder = load(directories[variant])
    cache = decoder.new_cache(NUM_TOKENS + 16)
    prompt, rows = text[:140], text[140:]
    torch.testing.assert_close(prefill(decoder, prompt, cache), expected[139], rtol=0, atol=1e-4)
    # The text's next tokens, each with another one beside it.
    tokens = [token for pair in zip(rows, reversed(rows), strict=True) for token in pair]
    positions = [position for position in range(140, 150) for _ in range(2)]
    above = [sum(1 << node for node in range(0, row // 2 * 2, 2)) for row in range(20)]
    tree = forward(decoder, tokens, positions, above, cache)
    torch.testing.assert_close(tree[::2], expected[140:], rtol=0, atol=1e-4)


def chosen_by_transformers(directory: Path, text: list[int]) -> Tensor:
    """Experts [layers, tokens, active], the likeliest first."""
    model = reference_model(directory)
    with torch.no_grad():
        logits = model(torch.tensor([text]), output_router_logits=True).router_logits
    experts = ModelSpec.from_directory(directory).experts
    assert experts is not None
    return torch.stack([layer.topk(experts.num_active).indices for layer in logits]).int()


@pytest.mark.parametrize("variant", ["mixtral", "qwen3-moe"])
def test_routes_are_those_of_the_last_forwards_rows(
    variant: str, load: Load, directories: Mapping[str, Path], text: list[int]
) -> None:
    decoder = load(directories[variant])
    caches = [decoder.new_cache(NUM_TOKENS) for _ in range(2)]
    expected = chosen_by_transformers(directories[variant], text)
    last_piece = 0 if isinstance(decoder._layers, KernelLayers) else PREFILL_CHUNK
    for num_tokens, first in ((20, 0), (40, 0), (NUM_TOKENS, last_piece)):
        caches[0].reset()
        prefill(decoder, text[:num_tokens], caches[0])
        assert_same(decoder.routes(), expected[:, first:num_tokens])
    caches[0].reset()
    prefill(decoder, text[:20], caches[0])
    rows = Rows(0, (Row(text[20], 20, 0), Row(text[21], 21, 0b1)))
    for kind in (ForwardKind.FIRST_HALF, ForwardKind.SECOND_HALF):
        decoder.forward(ForwardBatch(kind, (rows,)), caches)
    assert_same(decoder.routes(), expected[:, 20:22])
    caches[0].keep((), 0)
    decoder.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(1, tuple(text[:3])), rows)), caches)
    assert_same(decoder.routes(), expected[:, [0, 1, 2, 20, 21]])


def assert_same(routes: Tensor | None, expected: Tensor) -> None:
    assert routes is not None
    assert routes.dtype == torch.int32
    assert routes.tolist() == expected.tolist()


def test_dense_models_have_no_routes(load: Load, tmp_path: Path) -> None:
    decoder = load(write_checkpoint(tmp_path, "llama"))
    prefill(decoder, [1, 2], decoder.new_cache(4))
    assert decoder.routes() is None


@needs_kernels
def test_in_int8_all_matrices_are_rounded_except_routers(
    directories: Mapping[str, Path], text: list[int], tmp_path: Path
) -> None:
    """Logits are near those of a checkpoint whose matrices are so rounded, and rows are routed alike."""
    decoder = load_kernels(directories["mixtral"], dtype=torch.int8)
    logits = prefill(decoder, text, decoder.new_cache(NUM_TOKENS))
    assert isinstance(decoder._layers, KernelLayers)
    rounded = {}
    for name, weight in load_file(directories["mixtral"] / "model.safetensors").items():
        is_exact = weight.ndim < 2 or name.endswith((".gate.weight", "embed_tokens.weight"))
        scales = weight.abs().amax(-1, keepdim=True) / 127
        rounded[name] = weight if is_exact else (weight / scales).round() * scales
    save_file(rounded, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((directories["mixtral"] / "config.json").read_text())
    expected = reference_logits(tmp_path, text)[-1]
    assert (logits - expected).norm() < 0.15 * expected.norm()  # rows are rounded, too
    panels = [each for each in decoder._layers._packer._kept if isinstance(each, torch.Tensor) and each.ndim == 4]
    assert sum(each.dtype != torch.uint8 for each in panels) == decoder.spec.num_layers
