"""Formats of weights: int4 if they fill whole packed blocks, otherwise 16 bits."""

import pytest
import torch

from swiftspec.engine.model.gpu.weights import FORMATS, build_weight, read_bytes
from swiftspec.models.layer_parts import Experts
from tests.engine.shapes import small_spec

pytest.importorskip("swiftspec.kernels.quantised_gemm", reason="quantised weights need Triton")

from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight

NARROW, WIDE = torch.ones(16, 128).bfloat16(), torch.ones(16, 512).bfloat16()


def test_int4_leaves_what_it_cannot_pack_in_16_bits() -> None:
    assert build_weight(NARROW, FORMATS["int4"]) is NARROW
    assert isinstance(build_weight(WIDE, FORMATS["int4"]), Int4Weight)
    assert isinstance(build_weight(NARROW, FORMATS["fp8"]), Fp8Weight)
    assert build_weight(WIDE, FORMATS["bfloat16"]) is WIDE


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8", "int4"])
def test_bytes_read_are_those_of_the_weights_that_are_held(dtype: str) -> None:
    # int4 packs the products of hidden (256) and of heads (512), not those of the MLP's inner width.
    spec = small_spec(hidden_size=256, intermediate_size=384, num_heads=8, num_kv_heads=2, head_dim=64, vocab_size=64)
    shapes = [(512 + 2 * 128, 256), (256, 512), (2 * 384, 256), (256, 384)]
    held = 0
    for n, k in shapes:
        weight = build_weight(torch.ones(n, k).bfloat16(), FORMATS[dtype])
        if isinstance(weight, torch.Tensor):
            held += weight.nbytes
        else:
            assert isinstance(weight, Int4Weight | Fp8Weight)
            held += (weight.words if isinstance(weight, Int4Weight) else weight.values).nbytes
    assert read_bytes(spec, FORMATS[dtype]) == spec.num_layers * held + 64 * 256 * 2


def test_one_row_of_a_mixture_reads_its_experts_and_the_router() -> None:
    dense = small_spec(intermediate_size=48)
    mixture = small_spec(intermediate_size=48, experts=Experts(num_experts=6, num_active=2, size=48))
    network, router = 3 * 48 * 32, 6 * 32
    added = read_bytes(mixture, FORMATS["bfloat16"]) - read_bytes(dense, FORMATS["bfloat16"])
    assert added == 2 * dense.num_layers * (network + router)
