import pytest
import torch
import torch.nn.functional as F

from swiftspec.engine.model.cpu import layers
from swiftspec.engine.model.cpu.layers import Linear

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
@pytest.mark.parametrize(("num_rows", "outputs", "inputs"), [(1, 40, 24), (5, 123, 33), (64, 600, 130)])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_the_plain_product(
    num_rows: int,
    outputs: int,
    inputs: int,
    biased: bool,
    dtype: torch.dtype,
    tolerance: float,
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not packed:
        monkeypatch.setattr(layers, "_can_pack", lambda dtype: False)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    bias = torch.randn(outputs, generator=generator) if biased else None
    x = torch.randn(num_rows, inputs, generator=generator)
    with torch.inference_mode():
        y = Linear(weight, bias, dtype=dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), F.linear(x, weight, bias), rtol=tolerance, atol=tolerance)


def test_plain_weight_is_dropped_where_it_is_never_used() -> None:
    large = Linear(torch.ones(2000, 300), None, dtype=torch.float32)
    small = Linear(torch.ones(20, 30), None, dtype=torch.float32)
    assert (large._plain is None) == (large._packed is not None)
    assert small._plain is not None
