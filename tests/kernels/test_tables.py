from pathlib import Path
from typing import Any

import pytest
import torch

from swiftspec.kernels.products import Launch, TileConfig
from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight, quantised_gemm
from swiftspec.kernels.skinny_gemm import gate_up
from swiftspec.kernels.tables import Choice, Product, load_table, pick, table_path, tuned_config
from tools.tuning import save_table

CONFIG = TileConfig(block_n=64, block_k=256, split_k=2, num_stages=2)
CHOICES = (
    Choice(n=64, k=256, m=16, config=None, kernel_us=7.0, rival_us=6.0),
    Choice(n=64, k=256, m=4, config=CONFIG, kernel_us=4.5, rival_us=6.0),
    Choice(n=64, k=256, m=4, weights="int4", gated=True, config=CONFIG, kernel_us=2.5, rival_us=3.0),
)


def test_a_table_is_what_was_written(tmp_path: Path) -> None:
    save_table(CHOICES, tmp_path / "gpu.json")
    assert load_table(tmp_path / "gpu.json") == {
        Product(64, 256): (CHOICES[1], CHOICES[0]),
        Product(64, 256, "int4", gated=True): (CHOICES[2],),
    }


def test_what_is_measured_for_more_rows_serves_fewer_and_nothing_serves_more(tmp_path: Path) -> None:
    table = {Product(64, 256): (CHOICES[1], CHOICES[0])}
    assert [pick(table, Product(64, 256), num_rows=rows) for rows in (3, 4, 5, 17)] == [CONFIG, CONFIG, None, None]
    assert pick(table, Product(64, 256, "fp8"), num_rows=4) is None
    assert pick(load_table(tmp_path / "absent.json"), Product(64, 256), num_rows=1) is None


def test_kinds_of_gpu_have_their_own_tables() -> None:
    assert table_path("NVIDIA H100 80GB HBM3").name == "nvidia-h100-80gb-hbm3.json"
    assert table_path("NVIDIA H200").name == "nvidia-h200.json"


@pytest.mark.parametrize(
    ("product", "weight", "gated"),
    [
        (Product(64, 256, gated=True), torch.ones(64, 256).bfloat16(), True),
        (Product(64, 256, "fp8"), Fp8Weight.quantise(torch.ones(64, 256)), False),
        (Product(64, 256, "int4", gated=True), Int4Weight.quantise(torch.ones(64, 256)), True),
    ],
    ids=["bf16", "fp8", "int4"],
)
def test_gated_and_quantised_products_take_the_tuned_tiling(
    product: Product, weight: Any, gated: bool, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    choice = Choice(m=4, **product._asdict(), config=CONFIG, kernel_us=1.0, rival_us=2.0)
    monkeypatch.setattr("swiftspec.kernels.tables._table", lambda device: {product: (choice,)})
    planned: list[TileConfig] = []
    plan = Launch.plan

    def spy(x: torch.Tensor, n: int, config: TileConfig, **options: Any) -> Launch:
        planned.append(config)
        return plan(x, n, config, **options)

    monkeypatch.setattr(Launch, "plan", spy)
    if device == "cuda":
        weight = (
            weight.to(device)
            if isinstance(weight, torch.Tensor)
            else type(weight).quantise(torch.ones(64, 256, device=device))
        )
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.ones(3, 256, dtype=dtype, device=device)
        if isinstance(weight, torch.Tensor):
            gate_up(x, weight.to(dtype))
        else:
            quantised_gemm(x, weight, gated=gated)
    assert planned[0] == CONFIG
    assert planned[1] != CONFIG  # fp32 activations are in no table: tiles of theirs need not fit


def test_a_device_without_a_table_has_no_tuned_tiling() -> None:
    assert tuned_config(torch.ones(4, 256).bfloat16(), Product(64, 256)) is None
