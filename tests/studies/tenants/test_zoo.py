"""Equal layers, bytes and the tenants that fit, against numbers counted by hand; damaged directories."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from swiftspec.studies.blockllm.layouts import chains_of
from swiftspec.studies.tenants.directories import StoredZoo, read_zoo
from swiftspec.studies.tenants.tensors import read_header
from swiftspec.studies.tenants.zoo import Zoo
from tests.studies.tenants.models import (
    LAYER_BYTES,
    Tensors,
    base_tensors,
    factors,
    fine_tuned,
    write_adapter,
    write_model,
)

pytestmark = pytest.mark.extra("engine")

BASE_BYTES = sum(tensor.nbytes for tensor in base_tensors().values())
ADAPTER_BYTES = 4 * 4 * 2 * (16 + 16)  # layers x bytes x rank x (in + out)


@pytest.fixture
def stored(zoo_folder: Path) -> StoredZoo:
    return read_zoo([zoo_folder / name for name in ("base", "a", "b", "adapter")])


def runs(zoo: Zoo, name: str) -> list[tuple[str, tuple[str, ...]]]:
    tenant = next(each for each in zoo.tenants if each.name == name)
    return [(str(run), run.tenants) for run in zoo.runs(tenant)]


def test_equal_layers_are_one_block(stored: StoredZoo) -> None:
    everyone = ("base", "a", "b", "adapter")
    ends = ("head", everyone)
    assert runs(stored.zoo, "base") == [
        ("embedding, 0-1", everyone),
        ("2", ("base", "a", "adapter")),
        ("3", ("base", "adapter")),
        ends,
    ]
    assert runs(stored.zoo, "b") == [("embedding, 0-1", everyone), ("2", ("b",)), ("3", ("a", "b")), ends]


def test_bytes_are_those_of_different_tensors(stored: StoredZoo) -> None:
    zoo = stored.zoo
    assert [tenant.alone_bytes for tenant in zoo.tenants] == [BASE_BYTES] * 3 + [BASE_BYTES + ADAPTER_BYTES]
    assert [zoo.private_bytes(tenant) for tenant in zoo.tenants] == [0, 0, LAYER_BYTES, ADAPTER_BYTES]
    assert zoo.shared_bytes == BASE_BYTES + 2 * LAYER_BYTES + ADAPTER_BYTES


def test_tenants_that_fit_are_counted(stored: StoredZoo) -> None:
    zoo = stored.zoo
    kv_bytes = zoo.kv_bytes(context=10, dtype="bf16")
    assert kv_bytes == 2 * 4 * 8 * 2 * 10  # keys and values, layers, width, bytes, tokens
    added = (2 * LAYER_BYTES + ADAPTER_BYTES) / 3
    for memory in (BASE_BYTES - 1, BASE_BYTES + kv_bytes, 10 * BASE_BYTES, 37 * BASE_BYTES):
        fitting = zoo.fitting(memory, kv_bytes=kv_bytes)
        count = fitting.shared
        assert count == 0 or BASE_BYTES + kv_bytes + (count - 1) * (added + kv_bytes) <= memory
        assert BASE_BYTES + kv_bytes + count * (added + kv_bytes) > memory
        assert fitting.alone * (zoo.mean_alone_bytes + kv_bytes) <= memory
        assert (fitting.alone + 1) * (zoo.mean_alone_bytes + kv_bytes) > memory


def test_cosines_are_those_of_whole_parts(stored: StoredZoo, zoo_folder: Path) -> None:
    found = {(each.tenant, each.part): each for each in stored.nearnesses()}
    assert found.keys() == {("a", "3"), ("b", "2"), ("b", "3")}
    base, own = (load_file(zoo_folder / name / "model.safetensors") for name in ("base", "b"))
    names = [name for name in base if name.startswith("model.layers.2.")]
    x, y = (np.concatenate([tensors[name].ravel() for name in names]).astype(float) for tensors in (base, own))
    assert found["b", "2"].cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-9)
    assert found["a", "3"].cosine > 0.98 > 0.5 > found["b", "2"].cosine


def test_near_layers_would_save_their_bytes(stored: StoredZoo) -> None:
    nearnesses = stored.nearnesses()
    # Layer 3 of `a` and of `b` is one already; layer 2 of `b` is near to nothing.
    assert stored.zoo.shared_if_near(nearnesses, cosine=0.9) == BASE_BYTES + LAYER_BYTES + ADAPTER_BYTES
    assert stored.zoo.shared_if_near(nearnesses, cosine=1.0) == stored.zoo.shared_bytes


def test_weights_in_two_bytes_are_compared(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", {name: each.astype(np.float16) for name, each in base_tensors().items()})
    other = write_model(tmp_path / "other", {name: -each.astype(np.float16) for name, each in base_tensors().items()})
    assert {round(each.cosine, 6) for each in read_zoo([base, other]).nearnesses()} == {-1.0}
    bundled = read_header(Path(__file__).parents[3] / "swiftspec/demo/draft/model.safetensors")
    norm = bundled["model.norm.weight"]
    (values,) = norm.values()
    assert norm.dtype == "BF16"
    assert values.size == norm.num_elements
    assert 0.1 < values.mean() < 10


def test_a_chain_has_the_layers_of_its_blocks(stored: StoredZoo) -> None:
    chains = chains_of(stored.zoo)
    assert [each.share for each in chains["b"]] == [0.5, 0.25, 0.25]
    assert chains["a"][0] == chains["b"][0]
    assert chains["a"][2] == chains["b"][2] != chains["base"][2]


def test_sharded_checkpoints_are_read(zoo_folder: Path, tmp_path: Path) -> None:
    tensors = base_tensors()
    split = write_model(tmp_path / "split", {})
    (split / "model.safetensors").unlink()
    parts = {f"model-{number}.safetensors": list(tensors)[number::2] for number in range(2)}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, split / file)
    weight_map = {name: file for file, names in parts.items() for name in names}
    (split / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_zoo([zoo_folder / "base", split]).zoo.shared_bytes == BASE_BYTES


def without(name: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        tensors = base_tensors()
        del tensors[name]
        save_file(tensors, directory / "model.safetensors")

    return damage


def misshapen(directory: Path) -> None:
    save_file(base_tensors() | {"model.norm.weight": np.ones(17, np.float32)}, directory / "model.safetensors")


def narrower(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 8}))


def truncated(directory: Path) -> None:
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(content[:-100])


def header(text: bytes, length: int | None = None) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        content = struct.pack("<Q", len(text) if length is None else length) + text
        (directory / "model.safetensors").write_bytes(content)

    return damage


DAMAGES = {
    "config.json: cannot be read": lambda directory: (directory / "config.json").unlink(),
    "neither model.safetensors nor": lambda directory: (directory / "model.safetensors").unlink(),
    "tensor model.layers.2.mlp.up_proj.weight is missing": without("model.layers.2.mlp.up_proj.weight"),
    "tensor lm_head.weight is missing": without("lm_head.weight"),
    "tensor model.norm.weight has shape (17,); expected (16,)": misshapen,
    "hidden_size is 8; a tenant has that of the target, 16": narrower,
    "bytes, and data_offsets [": truncated,
    "its header would have 99 bytes": header(b"{}", 99),
    "its header is not a JSON document": header(b"{nonsense}"),
    "tensor x has dtype 'F4'": header(b'{"x": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}'),
    "tensor x has shape [-1]": header(b'{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}'),
    "tensor x has data_offsets [4]": header(b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}'),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_damaged_directories_are_refused(sentence: str, zoo_folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(zoo_folder / "a", tmp_path / "damaged")
    DAMAGES[sentence](damaged)
    with pytest.raises(ValueError, match="damaged") as caught:
        read_zoo([zoo_folder / "base", damaged])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_incomplete_base_is_refused(zoo_folder: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("model.layers.3.mlp.up_proj.weight", "lm_head.weight")):
        base = shutil.copytree(zoo_folder / "base", tmp_path / f"base{number}")
        without(name)(base)
        with pytest.raises(ValueError, match=r"up_proj.weight is missing|tensors have \d+ parameters"):
            read_zoo([base, zoo_folder / "a"])


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        (factors(), {"peft_type": "IA3"}, "peft_type is 'IA3'; expected 'LORA'"),
        (factors(), {"peft_type": "LORA", "r": 8, "lora_alpha": 8}, "has shape (2, 16); expected (8, 16)"),
        (factors(shape=(8, 16)), None, "lora_B.weight has shape (8, 2); expected (16, 2)"),
        (factors(matrix="self_attn.p_proj"), None, "is no factor lora_A or lora_B of a matrix of the base"),
        ({"base_model.model.lm_head.weight": np.ones((32, 16), np.float32)}, None, "is no factor"),
        ({}, None, "there are no factors"),
        (
            {name: each for name, each in factors().items() if "lora_B" not in name},
            None,
            "lora_B.weight is missing",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused(
    tensors: Tensors, config: dict[str, object] | None, sentence: str, zoo_folder: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "odd", tensors, config)
    with pytest.raises(ValueError, match="odd") as caught:
        read_zoo([zoo_folder / "base", adapter])
    assert sentence in str(caught.value)


def test_one_tenant_is_none(zoo_folder: Path) -> None:
    with pytest.raises(ValueError, match="expected a base and at least one more"):
        read_zoo([zoo_folder / "base"])
    with pytest.raises(ValueError, match="expected different directories"):
        read_zoo([zoo_folder / "base", zoo_folder / "base"])


def test_names_tell_directories_apart(zoo_folder: Path, tmp_path: Path) -> None:
    other = fine_tuned(zoo_folder / "base", tmp_path / "base", layers=(0,))
    assert [tenant.name for tenant in read_zoo([zoo_folder / "base", other]).zoo.tenants] == [
        str(zoo_folder / "base"),
        str(other),
    ]
