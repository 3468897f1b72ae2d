from typing import Any

import pytest
import torch

from swiftspec.kernels.products import TileConfig
from swiftspec.kernels.skinny_gemm import linear, skinny_gemm
from swiftspec.kernels.tables import Choice, Product

CONFIG = TileConfig(block_n=64, block_k=64, split_k=2)
CHOICES = (
    Choice(n=64, k=128, m=4, config=CONFIG, kernel_us=4.5, rival_us=6.0),
    Choice(n=64, k=128, m=16, config=None, kernel_us=7.0, rival_us=6.0),
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[TileConfig]:
    """As on a GPU whose table is CHOICES; answers the tilings of the skinny GEMM that were asked for."""
    asked: list[TileConfig] = []
    monkeypatch.setattr("swiftspec.kernels.tables._table", lambda device: {Product(64, 128): CHOICES})

    def spy(*args: Any, config: TileConfig, **kwargs: Any) -> torch.Tensor:
        asked.append(config)
        return skinny_gemm(*args, config=config, **kwargs)

    monkeypatch.setattr("swiftspec.kernels.skinny_gemm.skinny_gemm", spy)
    return asked


@pytest.mark.parametrize(
    ("rows", "dtype", "expected"),
    [
        (3, torch.float16, [CONFIG]),  # as measured for the next more rows
        (4, torch.bfloat16, [CONFIG]),
        (5, torch.float16, []),  # measured for 16: cuBLAS
        (17, torch.float16, []),  # not measured
        (4, torch.float32, []),  # the table is about 16-bit floats
    ],
    ids=["3-fp16", "4-bf16", "5-fp16", "17-fp16", "4-fp32"],
)
def test_takes_what_was_measured_to_be_faster(
    rows: int, dtype: torch.dtype, expected: list[TileConfig], measured: list[TileConfig], device: str
) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((rows, 128), (64, 128)))
    x, weight = (tensor.to(device, dtype) for tensor in (x, weight / 128**0.5))
    product = x.float() @ weight.float().T

    out = linear(x, weight)

    assert measured == expected
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), product, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_RK": torch.ones(3, 7)}, r"x_RK has shape \(3, 7\); expected \(any, 8\): K of weight_NK"),
        ({"x_RK": torch.ones(8, 3).T}, r"x_RK has strides \(1, 3\).*expected contiguous"),
        ({"x_RK": torch.ones(3, 8).double()}, r"x_RK is torch.float64; supported: "),
        ({"weight_NK": torch.ones(4, 8).half()}, r"weight_NK is torch.float16; supported: torch.float32"),
        ({"weight_NK": torch.ones(4, 8, device="meta")}, "weight_NK is on meta; expected cpu, the device of x_RK"),
    ],
    ids=["columns", "strides", "x-dtype", "dtype", "device"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x_RK": torch.ones(3, 8), "weight_NK": torch.ones(4, 8)} | change
    with pytest.raises(ValueError, match=message):
        linear(**arguments)
