from collections.abc import Callable
from typing import Any

import pytest
import torch

from swiftspec.kernels.rms_norm import rms_norm, rms_norm_reference
from tools.compiling import MAX_SHARED_BYTES, Compiled

EPS = 1e-5
# Under the interpreter a store to bf16 truncates, so that it is off by a whole unit in the last place.
TOLERANCE = [(torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 1e-2)]


@pytest.mark.parametrize(("rows", "hidden"), [(8, 512), (5, 123)], ids=["8x512", "5x123"])
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCE, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("has_update", [True, False], ids=["update", "plain"])
def test_matches_reference(
    rows: int, hidden: int, dtype: torch.dtype, tolerance: float, has_update: bool, device: str
) -> None:
    generator = torch.Generator().manual_seed(rows)
    residual, update = torch.randn(2, rows, hidden, generator=generator).to(device, dtype)
    weight = torch.randn(hidden, generator=generator).to(device, dtype)
    total = residual.clone()
    expected = rms_norm_reference(total, update if has_update else None, weight, eps=EPS)

    out = rms_norm(residual, update if has_update else None, weight, eps=EPS)

    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(residual, total, rtol=tolerance, atol=tolerance)


def test_no_rows_are_no_launch(device: str) -> None:
    empty = torch.empty(0, 16, device=device)
    assert rms_norm(empty, None, torch.ones(16, device=device), eps=EPS).shape == (0, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_H": torch.ones(7)}, r"weight_H has shape \(7,\); expected \(8\): H of residual_RH"),
        ({"update_RH": torch.ones(2, 8)}, r"update_RH has shape \(2, 8\); expected \(3, 8\)"),
        ({"update_RH": torch.ones(8, 3).T}, r"update_RH has strides \(1, 3\).*expected contiguous"),
        ({"residual_RH": torch.ones(3, 8, dtype=torch.float64)}, "residual_RH is torch.float64; supported: "),
        ({"residual_RH": torch.ones(3, 32768)}, "supported: H from 1 to 16384"),
        ({"weight_H": torch.ones(8, device="meta")}, "is on meta; expected cpu, the device of residual_RH"),
    ],
    ids=["weight", "update", "strides", "dtype", "hidden", "device"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "residual_RH": torch.ones(3, 8),
        "update_RH": torch.ones(3, 8),
        "weight_H": torch.ones(8),
    } | change
    with pytest.raises(ValueError, match=message):
        rms_norm(**arguments, eps=EPS)


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    for compiled in compile_gate("rms_norm"):
        assert compiled.stack_bytes == 0
        assert compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"ld\.global\S*\.v4") >= 3
        assert compiled.count(r"griddepcontrol\.wait") == 1
