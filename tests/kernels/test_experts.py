from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from swiftspec.engine.model.gpu.ops import PRODUCTS
from swiftspec.kernels.experts import experts, experts_reference
from tools.compiling import MAX_SHARED_BYTES, Compiled

# Under the interpreter a store to bf16 truncates, so that it is off by a whole unit in the last place.
TOLERANCE = [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
EVERY_WAY = {"kernel": experts, "reference": experts_reference, "of-prompts": PRODUCTS["experts"]}


class Case(NamedTuple):
    x: Tensor
    weights: Tensor
    chosen: Tensor
    gate_up: Tensor
    down: Tensor

    def expected(self) -> Tensor:
        """Slot by slot, in 64 bits."""
        out = torch.zeros(self.x.shape, dtype=torch.float64)
        for row, choices in enumerate(self.chosen.tolist()):
            for place, expert in enumerate(choices):
                gate, up = (self.gate_up[expert].double() @ self.x[row].double()).chunk(2)
                result = self.down[expert].double() @ (silu(gate) * up)
                out[row] += (self.weights[row, place].double() * result).cpu()
        return out

    def check(self, compute: Callable[..., Tensor], tolerance: float) -> None:
        out = compute(*self)
        assert out.dtype == self.x.dtype
        torch.testing.assert_close(out.double().cpu(), self.expected(), rtol=tolerance, atol=tolerance)


def case(
    rows: int, num_experts: int, width: int, hidden: int, *, device: str, dtype: torch.dtype = torch.float32
) -> Case:
    """Two random experts for each row; each expert's weights have a size of their own."""
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    chosen = torch.rand(rows, num_experts, generator=generator).argsort(-1)[:, :2].contiguous()
    sizes = (0.5 + torch.arange(num_experts) / num_experts)[:, None, None]
    return Case(
        normal(rows, hidden).to(device, dtype),
        torch.rand(rows, 2, generator=generator).to(device),
        chosen.to(device, torch.int32),
        (sizes * normal(num_experts, 2 * width, hidden) / hidden**0.5).to(device, dtype),
        (sizes * normal(num_experts, hidden, width) / width**0.5).to(device, dtype),
    )


# Programs by slot (fewer slots than experts) and by expert; inputs in whole tiles and not; both orders of operands.
SHAPES = [(1, 8, 128, 128), (3, 8, 77, 213), (17, 4, 77, 40), (64, 5, 64, 130)]


@pytest.mark.parametrize("way", EVERY_WAY.values(), ids=EVERY_WAY.keys())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_matches_slot_by_slot_in_64_bits(
    shape: tuple[int, int, int, int], way: Callable[..., Tensor], device: str
) -> None:
    case(*shape, device=device).check(way, 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCE[1:], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("way", EVERY_WAY.values(), ids=EVERY_WAY.keys())
def test_halves_are_summed_in_32_bits(
    dtype: torch.dtype, tolerance: float, way: Callable[..., Tensor], device: str
) -> None:
    case(3, 4, 77, 213, device=device, dtype=dtype).check(way, tolerance)


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("way", EVERY_WAY.values(), ids=EVERY_WAY.keys())
def test_all_rows_may_choose_the_same_experts(rows: int, way: Callable[..., Tensor], device: str) -> None:
    """What no row chose has no effect, whatever its weights are."""
    some = case(rows, 6, 24, 40, device=device)
    some.chosen[:] = torch.tensor([4, 1], dtype=torch.int32)
    some.chosen[1] = torch.tensor([1, 4], dtype=torch.int32)
    expected = some.expected()
    if way is not experts_reference:  # which multiplies them by zero
        for weights in (some.gate_up, some.down):
            weights[[0, 2, 3, 5]] = torch.nan
    torch.testing.assert_close(way(*some).double().cpu(), expected, rtol=1e-5, atol=1e-5)


def test_a_rows_bits_do_not_depend_on_the_other_rows(device: str) -> None:
    whole = case(16, 4, 77, 40, device=device)
    alone = whole._replace(x=whole.x[5:14].contiguous(), weights=whole.weights[5:14].contiguous())
    alone = alone._replace(chosen=whole.chosen[5:14].contiguous())
    assert torch.equal(experts(*alone), experts(*whole)[5:14])


def test_no_rows_are_no_launch(device: str) -> None:
    some = case(0, 4, 8, 16, device=device)
    assert experts(*some).shape == (0, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(3, 15)}, r"x_RH has shape \(3, 15\); expected \(any, 16\): H of down_EHI"),
        ({"x": torch.ones(65, 16)}, r"x_RH has shape \(65, 16\); supported: at most 64 rows"),
        ({"gate_up": torch.ones(4, 8, 16)}, r"gate_up_EJH has shape \(4, 8, 16\); expected \(4, 16, 16\): J = 2 I"),
        ({"chosen": torch.ones(2, 2).int()}, r"chosen_RK has shape \(2, 2\); expected \(3, any\): R of x_RH"),
        ({"chosen": torch.ones(3, 2)}, "chosen_RK is torch.float32; supported: torch.int32"),
        ({"weights": torch.ones(3, 1)}, r"weights_RK has shape \(3, 1\); expected \(3, 2\): that of chosen_RK"),
        ({"weights": torch.ones(3, 5), "chosen": torch.ones(3, 5).int()}, r"\(3, 5\); supported: K from 1 to E, 4"),
        ({"down": torch.ones(4, 16, 8).half()}, "down_EHI is torch.float16; supported: torch.float32"),
        ({"down": torch.ones(4, 16, 8, device="meta")}, "down_EHI is on meta; expected cpu, the device of x_RH"),
        ({"gate_up": torch.ones(4, 16, 16).mT}, "gate_up_EJH has strides .*expected contiguous"),
    ],
    ids=["columns", "rows", "width", "choices", "chosen", "weights", "active", "dtype", "device", "strides"],
)
def test_bad_argument_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experts(*case(3, 4, 8, 16, device="cpu")._replace(**change))


def test_compiles_for_hopper(compile_gate: Callable[[str], list[Compiled]]) -> None:
    gate = compile_gate("experts")
    assert [compiled.name for compiled in gate] == 6 * ["_experts_kernel", "_experts_kernel", "_sum_slots_kernel"]
    for compiled in gate:
        assert compiled.stack_bytes == 0
        assert compiled.count(r"griddepcontrol\.wait") == 1
        if compiled.name == "_sum_slots_kernel":
            assert compiled.count(r"ld\.global\S*\.v4") >= 2
            continue
        # Two programs fit a multiprocessor, and copies are asynchronous.
        assert 2 * compiled.shared_bytes <= MAX_SHARED_BYTES
        assert compiled.count(r"cp\.async\.cg\.shared\.global \[.*0x10") >= 24
        assert compiled.count(r"wgmma\.mma_async|mma\.sync") >= 4
