"""Mixtures of experts by torch's layers: checkpoints, logits, and networks that become copies of themselves."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.weights.checkpoint import canonical_name, load_weights, stored_name, weight_shapes
from swiftspec.engine.model.weights.inflate import write_inflated
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec, model_directory
from tests.engine.checkpoints import MIXTURES, VOCAB_SIZE, reference_logits, write_checkpoint
from tests.engine.decoders import load_torch
from tests.engine.forwards import forward, prefill

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = [(7 * token + 5) % VOCAB_SIZE for token in range(50)]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {name: write_checkpoint(tmp_path_factory.mktemp(name), name) for name in MIXTURES}


def last_logits(decoder: CpuDecoder, tokens: list[int] = TOKENS) -> torch.Tensor:
    return prefill(decoder, tokens, decoder.new_cache(len(tokens)))


@pytest.mark.parametrize("variant", MIXTURES)
def test_names_and_shapes_are_those_transformers_writes(variant: str, directories: Mapping[str, Path]) -> None:
    spec = ModelSpec.from_directory(directories[variant])
    stored = load_file(directories[variant] / "model.safetensors")
    shapes = weight_shapes(spec)
    assert {canonical_name(name): tuple(each.shape) for name, each in stored.items()} == shapes
    assert {stored_name(name, spec) for name in shapes} == set(stored)
    assert spec.num_parameters == sum(each.numel() for each in stored.values())


@pytest.mark.parametrize("variant", MIXTURES)
def test_logits_are_those_of_transformers(variant: str, directories: Mapping[str, Path]) -> None:
    expected = reference_logits(directories[variant], TOKENS)
    decoder = load_torch(directories[variant])
    cache = decoder.new_cache(64)
    torch.testing.assert_close(prefill(decoder, TOKENS[:40], cache), expected[39], rtol=0, atol=1e-4)
    stepped = forward(decoder, TOKENS[40:], range(40, 50), [(1 << row) - 1 for row in range(10)], cache)
    torch.testing.assert_close(stepped, expected[40:], rtol=0, atol=1e-4)


def test_rows_of_a_tree_are_computed_by_their_own_experts(directories: Mapping[str, Path]) -> None:
    directory = directories["mixtral"]
    decoder = load_torch(directory)
    cache = decoder.new_cache(64)
    prefill(decoder, TOKENS[:20], cache)
    logits = forward(decoder, [3, 11, 29], [20, 21, 21], [0, 1, 1], cache)
    for row, path in enumerate(([3], [3, 11], [3, 29])):
        expected = reference_logits(directory, TOKENS[:20] + path)[-1]
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "tensor model.layers.1.block_sparse_moe.experts.2.w2.weight is missing"),
        (torch.zeros(48, 39), r"experts.2.w2.weight has shape \(48, 39\); expected \(48, 40\)"),
    ],
)
def test_a_tensor_that_does_not_fit_has_its_stored_name(
    directories: Mapping[str, Path], tmp_path: Path, change: torch.Tensor | None, message: str
) -> None:
    source, name = directories["mixtral"], "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    weights = load_file(source / "model.safetensors")
    del weights[name]
    save_file(weights if change is None else {**weights, name: change}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load_weights(tmp_path, ModelSpec.from_directory(source))


@pytest.mark.parametrize("variant", ["llama", "llama-tied", "qwen3", "qwen3-tied-bias"])
@pytest.mark.parametrize("text", ["layers=5,experts=4,active=2", "hidden=96,intermediate=200,experts=3"])
def test_copies_answer_as_the_network_did(variant: str, text: str, tmp_path: Path) -> None:
    source, out = write_checkpoint(tmp_path / "small", variant), tmp_path / "large"
    inflation = Inflation.parse(text)
    expected = reference_logits(source, TOKENS)
    inflated = CpuDecoder(source, inflation=inflation)
    torch.testing.assert_close(last_logits(inflated), expected[-1], rtol=0, atol=1e-4)
    write_inflated(source, inflation, out, dtype=torch.float32)
    torch.testing.assert_close(reference_logits(out, TOKENS), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(last_logits(CpuDecoder(out)), expected[-1], rtol=0, atol=1e-4)
    assert ModelSpec.from_directory(out) == inflation.inflated(ModelSpec.from_directory(source))
    assert json.loads((out / "config.json").read_text())["model_type"] == inflated.spec.architecture


@pytest.mark.parametrize("variant", ["mixtral", "qwen3-moe"])
def test_a_mixture_is_inflated_with_its_own_experts(
    variant: str, directories: Mapping[str, Path], tmp_path: Path
) -> None:
    source, out = directories[variant], tmp_path / "large"
    write_inflated(source, Inflation.parse("layers=4,hidden=96,intermediate=200"), out, dtype=torch.float32)
    expected = reference_logits(source, TOKENS)
    torch.testing.assert_close(reference_logits(out, TOKENS), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(last_logits(CpuDecoder(out)), expected[-1], rtol=0, atol=1e-4)


def test_the_bundled_target_says_the_same_as_a_mixture() -> None:
    directory = model_directory("demo/target")
    alone = CpuDecoder(directory)
    mixture = CpuDecoder(directory, inflation=Inflation.parse("layers=12,experts=8,active=2"))
    tokens = [1, 40, 300, 7]
    for _ in range(8):
        expected, found = last_logits(alone, tokens), last_logits(mixture, tokens)
        assert (found - expected).norm() < 1e-4 * expected.norm()
        assert found.argmax() == expected.argmax()
        tokens.append(int(expected.argmax()))


def test_tenants_of_a_mixture_are_refused(directories: Mapping[str, Path]) -> None:
    directory = directories["mixtral"]
    with pytest.raises(ValueError, match=r"tenants are served of dense models only; .* has experts"):
        CpuDecoder(directory, tenants=[directory])
