import pytest

from swiftspec.costmodel.published import SwiftSpecKernels, int4_weight_bytes
from swiftspec.devices import named_device
from swiftspec.models import known_model
from swiftspec.timing.latency import Provenance

H800 = named_device("h800-sxm")
LLAMA = known_model("llama-3-70b").spec


def test_shards_of_a_layer_are_the_layer() -> None:
    whole = sum(int4_weight_bytes(LLAMA, 1).values())
    assert whole == pytest.approx(LLAMA.matrix_parameters / LLAMA.num_layers * (4 + 20 / 128) / 8)
    assert sum(int4_weight_bytes(LLAMA, 8).values()) == pytest.approx(whole / 8)


def test_odd_degrees_are_padded() -> None:
    even, odd = int4_weight_bytes(LLAMA, 1), int4_weight_bytes(LLAMA, 3)
    assert all(odd[name] > even[name] / 3 for name in even)


def test_forward_has_parts_of_known_provenance() -> None:
    parts = SwiftSpecKernels(H800).parts(LLAMA, degree=4, rows=8, context=500)
    assert 9e-3 < sum(part.seconds for part in parts) < 13e-3
    assert {part.provenance for part in parts} <= {Provenance.INTERPOLATED, Provenance.COMPOSED, Provenance.ROOFLINE}
    rested = sum(part.seconds for part in parts if part.provenance is Provenance.ROOFLINE)
    assert rested < 0.05 * sum(part.seconds for part in parts)


def test_faster_memory_takes_less_time() -> None:
    def forward_s(device: str) -> float:
        kernels = SwiftSpecKernels(named_device(device))
        return sum(part.seconds for part in kernels.parts(LLAMA, degree=2, rows=8, context=500))

    assert forward_s("h200-sxm") < forward_s("h800-sxm")


def test_rows_beyond_a_tile_and_context_cost() -> None:
    kernels = SwiftSpecKernels(H800)

    def forward_s(rows: int, context: int) -> float:
        return sum(part.seconds for part in kernels.parts(LLAMA, degree=4, rows=rows, context=context))

    assert forward_s(8, 500) < forward_s(9, 500) == pytest.approx(forward_s(16, 500))
    assert forward_s(8, 500) < forward_s(8, 1000)


@pytest.mark.parametrize(("device", "is_known"), [("h800-sxm", True), ("h100-sxm", True), ("b200", False)])
def test_on_another_memory_published_forwards_are_rooflines(device: str, is_known: bool) -> None:
    parts = SwiftSpecKernels(named_device(device)).parts(LLAMA, degree=4, rows=8, context=64)
    weak = sum(part.seconds for part in parts if part.provenance is Provenance.ROOFLINE)
    assert (weak < 0.2 * sum(part.seconds for part in parts)) is is_known
