"""A rank holds its part of each weight, and reads no other."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftspec.engine.model.weights.checkpoint import load_weights, weight_shapes
from swiftspec.engine.model.weights.loader import local_spec
from swiftspec.engine.model.weights.sharding import cut
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.sharding import shard_of
from swiftspec.models.spec import ModelSpec
from tests.engine.checkpoints import write_checkpoint


def tp_group_of(size: int, rank: int) -> TPGroup:
    tp_group = TPGroup()
    tp_group.size, tp_group.rank = size, rank
    return tp_group


@pytest.mark.parametrize("degree", [2, 3, 5, 7])
@pytest.mark.parametrize("variant", ["llama-tied", "llama-bias", "qwen3-tied-bias"])
def test_parts_have_the_shapes_of_the_shard(tmp_path: Path, variant: str, degree: int) -> None:
    directory = write_checkpoint(tmp_path, variant)
    spec = ModelSpec.from_directory(directory)
    for rank in range(degree):
        weights = load_weights(directory, spec, shard_of(spec, degree, rank))
        expected = weight_shapes(local_spec(spec, rank=rank, size=degree))
        expected["model.embed_tokens.weight"] = (spec.vocab_size, spec.hidden_size)
        assert {name: tuple(weight.shape) for name, weight in weights.items()} == expected


def test_what_other_ranks_hold_is_not_read(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, "llama-bias")
    spec = ModelSpec.from_directory(directory)
    whole = load_file(directory / "model.safetensors")
    expected = load_weights(directory, spec, shard_of(spec, 2, 0))
    poisoned = {}
    for name, weight in whole.items():
        other = cut(name, torch.ones_like(weight), shard_of(spec, 2, 0))
        if other.shape == weight.shape:  # not divided
            poisoned[name] = weight
            continue
        axis = next(axis for axis in range(weight.dim()) if other.shape[axis] != weight.shape[axis])
        poisoned[name] = weight.clone()
        held = min(other.shape[axis], weight.shape[axis])
        poisoned[name].narrow(axis, held, weight.shape[axis] - held).fill_(torch.nan)
    assert sum(int(weight.isnan().any()) for weight in poisoned.values()) > 3 * spec.num_layers
    save_file(poisoned, directory / "model.safetensors", metadata={"format": "pt"})
    weights = load_weights(directory, spec, shard_of(spec, 2, 0))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
