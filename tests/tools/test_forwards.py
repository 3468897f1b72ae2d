"""Timing whole forwards; on a CPU in plain torch, at a tiny shape."""

import gc
from pathlib import Path
from typing import Any

import pytest

from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.profiler.op_timer import OpTimer
from tools import forwards
from tools.forwards import forward_record, shape_of


def time_forward(**options: Any) -> dict[str, Any]:
    watch = OpTimer("cpu", repeats=1, warm_up_s=0.0, budget_s=0.0, cached_bytes=1024)
    spec = shape_of("8B", quick=True)
    return forward_record(watch, model="8B", spec=spec, dtype="bfloat16", context=4, **options)


def num_decoders() -> int:
    return sum(issubclass(type(found), GpuDecoder) for found in gc.get_objects())


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_gone_before_the_next_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest one fits into a GPU's memory only once."""
    alive: list[int] = []

    class Counted(GpuDecoder):
        def __init__(self, *args: Any, **options: Any) -> None:
            alive.append(num_decoders() - 1)
            super().__init__(*args, **options)

    monkeypatch.setattr(forwards, "GpuDecoder", Counted)
    gc.collect()
    before = num_decoders()
    gc.disable()
    try:
        for _ in range(3):
            time_forward()
    finally:
        gc.enable()
    assert max(alive) <= before


@pytest.mark.usefixtures("one_thread")
def test_a_traced_forward_has_the_times_of_its_kernels(tmp_path: Path) -> None:
    record = time_forward(trace=tmp_path / "forward.json.gz")
    assert (tmp_path / "forward.json.gz").stat().st_size > 0
    assert record["median_s"] > 0
    idle, *kernels = record["kernels"]
    assert idle == "idle"
    assert record["kernels"]["aten::linear"] > 0
    times = [record["kernels"][name] for name in kernels]
    assert times == sorted(times, reverse=True)


def test_an_unknown_way_to_multiply_is_named() -> None:
    with pytest.raises(ValueError, match="products is 'tunde'; expected one of torch, default, tuned"):
        time_forward(products="tunde")
