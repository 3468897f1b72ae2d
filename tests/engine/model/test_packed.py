"""Matrices of AWQ and GPTQ checkpoints, packed here as their authors' kernels have them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.weights.checkpoint import load_weights
from swiftspec.engine.model.weights.loader import load_model
from swiftspec.models.spec import ModelSpec
from tests.engine.checkpoints import reference_logits, write_checkpoint
from tests.engine.decoders import load_kernels
from tests.engine.forwards import prefill

pytestmark = pytest.mark.usefixtures("one_thread")

GROUP = 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ, awq/modules/linear/gemm.py: column of each four bits, from the lowest
AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": GROUP, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
Parts = dict[str, Tensor]
Quantise = Callable[[Tensor], tuple[Parts, Tensor]]  # parts of a matrix [out, in], and the matrix that they stand for


def words(integers: Tensor, bits: int) -> Tensor:
    """Int32s of integers [N, M], the first of each in the lowest bits: [N, M * bits / 32]."""
    apart = integers.long().unflatten(1, (-1, 32 // bits))
    shifts = torch.arange(0, 32, bits)
    packed: Tensor = (apart << shifts).sum(-1).to(torch.int32)
    return packed


def rounded(matrix: Tensor, groups: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Integers [in, out], zeros and scales [groups, out] of a matrix [out, in] whose inputs are in these groups."""
    columns, most = matrix.T, 2**bits - 1
    low = torch.stack([columns[groups == group].amin(0).clamp(max=0) for group in range(int(groups.max()) + 1)])
    high = torch.stack([columns[groups == group].amax(0).clamp(min=0) for group in range(int(groups.max()) + 1)])
    scales = ((high - low) / most).half()
    zeros = (-low / scales).round().clamp(0, most).int()
    return (columns / scales[groups] + zeros[groups]).round().clamp(0, most).int(), zeros, scales


def awq(matrix: Tensor) -> tuple[Parts, Tensor]:
    groups = torch.arange(matrix.shape[1]) // GROUP
    integers, zeros, scales = rounded(matrix, groups, 4)

    def packed(columns: Tensor) -> Tensor:
        return words(columns.unflatten(1, (-1, 8))[..., torch.tensor(AWQ_ORDER)].flatten(1), 4)

    parts = {"qweight": packed(integers), "qzeros": packed(zeros), "scales": scales}
    return parts, ((integers - zeros[groups]).half() * scales[groups]).T


def gptq(bits: int, *, less: int = 1, has_order: bool = False) -> Quantise:
    def quantise(matrix: Tensor) -> tuple[Parts, Tensor]:
        groups = torch.arange(matrix.shape[1]) // GROUP
        if has_order:  # as desc_act sorts them
            groups = groups[torch.randperm(len(groups), generator=torch.manual_seed(0))]
        integers, zeros, scales = rounded(matrix, groups, bits)
        parts = {
            "qweight": words(integers.T, bits).T.contiguous(),
            "qzeros": words((zeros - less) & (2**bits - 1), bits),
            "scales": scales,
            "g_idx": groups.int(),
        }
        return parts, ((integers - zeros[groups]).half() * scales[groups]).T

    return quantise


FORMATS: dict[str, tuple[dict[str, Any], Quantise]] = {
    "awq": (AWQ, awq),
    "gptq": (GPTQ, gptq(4)),
    "gptq of 8 bits": (GPTQ | {"bits": 8}, gptq(8)),
    "gptq in order of activations": (GPTQ | {"desc_act": True}, gptq(4, has_order=True)),
    "gptq's second format": (GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(4, less=0)),
}


def write_packed(directory: Path, name: str, *, variant: str = "llama", num_files: int = 1) -> Path:
    """A packed checkpoint in `directory`, and in a folder `plain` of it what it stands for."""
    config, quantise = FORMATS[name]
    write_checkpoint(directory, variant)
    whole = load_file(directory / "model.safetensors")
    stored, plain = dict(whole), dict(whole)
    for tensor, matrix in whole.items():
        if tensor.endswith("_proj.weight") or ".w1." in tensor or ".w2." in tensor or ".w3." in tensor:
            parts, plain[tensor] = quantise(matrix)
            module = tensor.removesuffix("weight")
            stored = {other: value for other, value in stored.items() if other != tensor}
            stored |= {module + part: value for part, value in parts.items()}
    (directory / "model.safetensors").unlink()
    files = {f"{number}.safetensors": sorted(stored)[number::num_files] for number in range(num_files)}
    for file, tensors in files.items():
        save_file({tensor: stored[tensor].contiguous() for tensor in tensors}, directory / file)
    weight_map = {tensor: file for file, tensors in files.items() for tensor in tensors}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    values = json.loads((directory / "config.json").read_text())
    (directory / "plain").mkdir()
    (directory / "plain/config.json").write_text(json.dumps(values))
    save_file(
        {tensor: value.float().contiguous() for tensor, value in plain.items()}, directory / "plain/model.safetensors"
    )
    (directory / "config.json").write_text(json.dumps(values | {"quantization_config": config}))
    return directory


def load(directory: Path) -> dict[str, Tensor]:
    return load_weights(directory, ModelSpec.from_directory(directory))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("variant", ["llama", "mixtral"])
def test_weights_are_what_the_integers_stand_for(name: str, variant: str, tmp_path: Path) -> None:
    found, expected = load(write_packed(tmp_path, name, variant=variant, num_files=3)), load(tmp_path / "plain")
    assert found.keys() == expected.keys()
    for tensor in expected:
        torch.testing.assert_close(found[tensor].float(), expected[tensor], rtol=0, atol=0)


def test_every_rank_has_its_part(tmp_path: Path) -> None:
    write_packed(tmp_path, "gptq")
    for rank in range(2):
        parts = [load_model(path, rank=rank, size=2, inflation=None)[1] for path in (tmp_path, tmp_path / "plain")]
        for tensor in parts[1]:
            torch.testing.assert_close(parts[0][tensor].float(), parts[1][tensor], rtol=0, atol=0)


def test_logits_are_those_of_transformers_with_the_unpacked_weights(tmp_path: Path) -> None:
    tokens = list(range(60))
    decoder = load_kernels(write_packed(tmp_path, "awq"))
    found = prefill(decoder, tokens, decoder.new_cache())
    torch.testing.assert_close(found, reference_logits(tmp_path / "plain", tokens)[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"quant_method": "fp8"},
            "quantization_config.quant_method is 'fp8'; expected awq or gptq, or no quantisation",
        ),
        ({"quant_method": None}, "quantization_config.quant_method is None; expected awq or gptq"),
        ({"version": "gemv"}, "quantization_config.version is 'gemv'; expected gemm or GEMM"),
        ({"bits": 3}, "quantization_config.bits is 3; expected 4"),
        ({"group_size": 0}, "quantization_config.group_size is 0; expected a number of weights, or -1"),
        ({"group_size": 16}, "mlp.down_proj has qweight .*, which do not belong together"),
    ],
    ids=str,
)
def test_a_format_that_is_not_unpacked_is_one_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write_packed(tmp_path, "awq")
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"quantization_config": AWQ | changes}))
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path)


def test_zero_biases_are_left_out_and_others_refused(tmp_path: Path) -> None:
    """GPTQ's tools write them, whether the model has any or not."""
    write_packed(tmp_path, "gptq")
    path = tmp_path / "0.safetensors"
    bias = "model.layers.0.mlp.up_proj.bias"
    save_file(load_file(path) | {bias: torch.zeros(72)}, path)
    assert bias not in load(tmp_path)
    save_file(load_file(path) | {bias: torch.ones(72)}, path)
    with pytest.raises(ValueError, match=f"unexpected tensor {bias}"):
        load(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_packed(tmp_path, "awq")
    path, scales = tmp_path / "0.safetensors", "model.layers.1.self_attn.q_proj.scales"
    save_file({tensor: value for tensor, value in load_file(path).items() if tensor != scales}, path)
    with pytest.raises(ValueError, match=f"tensor {scales} is missing beside its other parts"):
        load(tmp_path)
