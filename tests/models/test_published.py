import json
from pathlib import Path

import pytest

from swiftspec import models
from swiftspec.devices import DEVICES, ClusterSpec, DeviceSpec, named_device
from swiftspec.models.published import known_model, registered_name
from swiftspec.models.spec import weight_bytes

# Sizes of the safetensors files' tensors, as the models' cards state them.
DENSE, SPARSE = (
    json.loads((Path(models.__file__).parent / file).read_text())
    for file in ("published.json", "published_sparse.json")
)


@pytest.mark.parametrize("name", DENSE)
def test_shape_has_the_parameters_of_the_model(name: str) -> None:
    assert known_model(name).spec.num_parameters == DENSE[name]["num_parameters"]


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_shape_has_about_the_parameters_on_its_card(name: str) -> None:
    """Cards round: 235 billion, 1 trillion. A forgotten part, such as shared experts or gates, is more than that."""
    assert known_model(name).spec.num_parameters == pytest.approx(SPARSE[name]["stated_parameters"], rel=0.02)


def test_pairs_of_the_papers_share_a_vocabulary() -> None:
    for target, draft in (
        ("llama-3-70b", "llama-3.2-3b"),
        ("llama-3.1-70b", "llama-3.2-1b"),
        ("llama-2-70b", "llama-2-7b"),
        ("qwen2-72b", "qwen2-1.5b"),
        ("deepseek-coder-33b", "deepseek-coder-1.3b"),
        ("r1-distill-qwen-32b", "r1-distill-qwen-1.5b"),
    ):
        assert known_model(target).vocabulary == known_model(draft).vocabulary
    assert known_model("llama-3-70b").vocabulary != known_model("llama-2-7b").vocabulary


def test_int4_is_the_layers_matrices_in_groups_and_the_rest_in_bf16() -> None:
    spec = known_model("llama-3-70b").spec
    embeddings = 2 * 128256 * 8192
    norms = 80 * 2 * 8192 + 8192
    matrices = spec.num_parameters - embeddings - norms
    assert weight_bytes(spec, "bf16") == 2 * spec.num_parameters
    assert weight_bytes(spec, "int4") == round(matrices * (4 + 20 / 128) / 8) + 2 * (embeddings + norms)
    assert weight_bytes(spec, "fp8") == matrices + 2 * (embeddings + norms)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_devices_are_plausible_and_say_where_figures_are_from(device: DeviceSpec) -> None:
    assert device.source
    assert f"{device.memory_bytes // 2**20}MiB" in device.memory_source or device.name == "h800-sxm"
    # Decoding is bound by memory: a weight is read before it could be used a hundred times; on an H20 or a CPU, thirty.
    assert device.peak_flops["bf16"] / device.memory_bandwidth_Bps > (
        30 if device.cores or device.name in ("h20", "h20-141gb") else 100
    )
    assert device.link_bandwidth_Bps < device.memory_bandwidth_Bps


def test_h800_is_an_h100_with_slower_links() -> None:
    slow, fast = named_device("h800-sxm"), named_device("h100-sxm")
    assert slow.memory_bandwidth_Bps == fast.memory_bandwidth_Bps
    assert slow.memory_bytes == fast.memory_bytes
    assert slow.link_bandwidth_Bps < fast.link_bandwidth_Bps


def test_unknown_names_bring_the_closest_ones() -> None:
    with pytest.raises(ValueError, match=r"device is 'h100-sxn'; did you mean h100-sxm"):
        named_device("h100-sxn")
    with pytest.raises(ValueError, match=r"model is 'Llama3-70B'; did you mean .*llama-3-70b"):
        known_model("Llama3-70B")
    with pytest.raises(ValueError, match="device is 'abacus'; expected one of h100-sxm, "):
        named_device("abacus")
    with pytest.raises(ValueError, match="quant is 'int3'; did you mean int"):
        weight_bytes(known_model("llama-2-7b").spec, "int3")


def test_nodes_are_filled_one_after_another() -> None:
    device = named_device("h200-sxm")
    assert ClusterSpec(device=device, num_devices=8).nodes == (range(8),)
    assert ClusterSpec(device=device, num_devices=11).nodes == (range(8), range(8, 11))
    with pytest.raises(ValueError, match="num_devices is 0; expected at least 1"):
        ClusterSpec(device=device, num_devices=0)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((5, 3), (range(5), range(5, 8))),
        ((5, 8), (range(5), range(8, 16))),
        ((3, 3, 3, 2), (range(3), range(3, 6), range(8, 11), range(6, 8))),
        ((9,), None),
        ((5, 5, 5), None),
    ],
)
def test_a_group_stays_within_a_node(sizes: tuple[int, ...], groups: tuple[range, ...] | None) -> None:
    assert ClusterSpec(device=named_device("h200-sxm"), num_devices=16).place(sizes) == groups


def test_models_are_known_by_their_repository_too() -> None:
    assert registered_name("qwen2-72b") == registered_name("Qwen/Qwen2-72B") == "qwen2-72b"
    assert registered_name("Qwen/Qwen1.5-72B") is None
