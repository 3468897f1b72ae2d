import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.weights.checkpoint import load_weights, weight_shapes
from swiftspec.models.spec import ModelSpec
from tests.engine.checkpoints import VARIANTS, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "qwen2-tied")


def stored(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


def load(directory: Path) -> dict[str, Tensor]:
    return load_weights(directory, ModelSpec.from_directory(directory))


def write_shards(directory: Path) -> None:
    """Replace the single file by two shards and their index."""
    weights = stored(directory)
    shards = {"a.safetensors": sorted(weights)[::2], "b.safetensors": sorted(weights)[1::2]}
    for file, names in shards.items():
        save_file({name: weights[name] for name in names}, directory / file)
    weight_map = {name: file for file, names in shards.items() for name in names}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "model.safetensors").unlink()


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_and_shapes_are_those_transformers_writes(variant: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant)
    written = {name: tuple(tensor.shape) for name, tensor in stored(tmp_path).items()}
    spec = ModelSpec.from_directory(tmp_path)
    assert weight_shapes(spec) == written
    assert spec.num_parameters == sum(tensor.numel() for tensor in stored(tmp_path).values())


def test_shards_hold_the_same_weights_as_one_file(model: Path) -> None:
    whole = load(model)
    write_shards(model)
    sharded = load(model)
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_redundant_tensors_are_ignored(model: Path) -> None:
    weights = stored(model)
    save_file(
        weights | {"lm_head.weight": torch.zeros(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)},
        model / "model.safetensors",
    )
    assert load(model).keys() == weights.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"model.extra": torch.zeros(2)}, "model.safetensors: unexpected tensor model.extra"),
        ({"model.norm.weight": torch.zeros(5)}, r"model.norm.weight has shape \(5,\); expected \(48,\)"),
        ({"model.norm.weight": torch.zeros(48, dtype=torch.int32)}, "model.norm.weight has dtype torch.int32"),
    ],
)
def test_tensor_that_does_not_fit_is_named(model: Path, change: dict[str, Tensor | None], message: str) -> None:
    weights = stored(model) | change
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, model / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load(model)


@pytest.mark.parametrize("keep_bytes", [0, 7, 2000])
def test_truncated_file_is_named(model: Path, keep_bytes: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep_bytes])
    with pytest.raises(ValueError, match=r"model.safetensors: not a readable safetensors file"):
        load(model)


def test_directory_without_weights_is_named(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        load(model)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("not json", "not a JSON document"),
        ("[]", "expected an object with a weight_map"),
        ("{}", "expected an object with a weight_map"),
        ('{"weight_map": {}}', "expected an object with a weight_map"),
        ('{"weight_map": {"a": 3}}', r"weight_map\.a is 3; expected a file next to it"),
        ('{"weight_map": {"a": "../other.safetensors"}}', r"weight_map\.a is '../other.safetensors'; expected a file"),
        ('{"weight_map": {"a": "/etc/passwd"}}', r"weight_map\.a is '/etc/passwd'; expected a file next to it"),
        ('{"weight_map": {"a": ".."}}', r"weight_map\.a is '..'; expected a file next to it"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_index_is_named(model: Path, index: str, message: str) -> None:
    write_shards(model)
    (model / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=rf"index.json: .*{message}"):
        load(model)


def test_more_layers_than_the_checkpoint_has_are_refused_before_they_are_named(model: Path) -> None:
    spec = dataclasses.replace(ModelSpec.from_directory(model), num_layers=10**9)
    with pytest.raises(ValueError, match=r"num_hidden_layers is 1000000000; model\.layers\.\d+ and what"):
        load_weights(model, spec)


def test_header_of_an_incredible_length_is_refused(model: Path) -> None:
    (model / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match=r"model.safetensors: not a readable safetensors file: its header would have"):
        load(model)


def test_missing_shard_is_named(model: Path) -> None:
    write_shards(model)
    (model / "b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"b.safetensors: cannot be read \(No such file"):
        load(model)
