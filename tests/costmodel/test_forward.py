"""Forwards composed of operations."""

from typing import Any

import pytest

from swiftspec.costmodel.forward import Host, forward_parts
from swiftspec.costmodel.forward_ops import FUSED, all_reduce_times, fastest
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.models.published import known_model
from swiftspec.models.spec import weight_bytes
from swiftspec.timing.latency import Part

LARGE, SMALL = known_model("llama-3-70b").spec, known_model("llama-3.2-3b").spec
H200 = kernels_of("h200-sxm")


def _total(parts: tuple[Part, ...]) -> float:
    return sum(part.seconds for part in parts)


def _seconds(*, degree: int = 4, rows: int = 1, context: int = 1024, sequences: int = 1) -> float:
    parts = forward_parts(
        LARGE, kernels=H200, quant="bf16", degree=degree, rows=rows, context=context, sequences=sequences
    )
    return _total(parts)


def test_a_forward_is_slower_than_its_weights_at_peak_bandwidth() -> None:
    for degree in (1, 2, 4, 8):
        light_s = weight_bytes(LARGE, "bf16") / degree / H200.device.memory_bandwidth_Bps
        assert light_s < _seconds(degree=degree) < 2.5 * light_s


ENGINES = ("vllm", "sglang", "trtllm")


def _forward_s(device: str, framework: str, model: str, *, quant: str, degree: int, rows: int) -> float:
    kernels = kernels_of(device, framework=framework)
    spec = known_model(model).spec
    return _total(forward_parts(spec, kernels=kernels, quant=quant, degree=degree, rows=rows, context=512))


@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm", "h800-sxm", "a100-sxm", "l40s", "b200"])
@pytest.mark.parametrize("framework", ENGINES)
def test_a_forward_costs_no_less_than_one_of_fewer_rows(device: str, framework: str) -> None:
    for model, degree, quant in (("llama-3-70b", 4, "fp8"), ("llama-3-70b", 8, "bf16"), ("llama-3.2-1b", 1, "bf16")):
        seconds = [
            _forward_s(device, framework, model, quant=quant, degree=degree, rows=rows)
            for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
        ]
        assert seconds == pytest.approx(sorted(seconds), rel=1e-9), (model, degree, quant)


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("quant", ["fp8", "bf16"])
@pytest.mark.parametrize(("model", "degree"), [("qwen2.5-72b", 4), ("qwen2.5-7b", 1), ("llama-3-70b", 4)])
def test_a_b200_is_no_slower_than_an_h200(framework: str, quant: str, model: str, degree: int) -> None:
    for rows in (1, 2, 4, 8):
        newer, older = (
            _forward_s(device, framework, model, quant=quant, degree=degree, rows=rows)
            for device in ("b200", "h200-sxm")
        )
        assert newer < older, rows


def test_more_devices_are_faster_for_a_large_model() -> None:
    seconds = [_seconds(degree=degree) for degree in range(1, 9)]
    assert seconds == sorted(seconds, reverse=True)


def test_verifying_costs_little_more_than_decoding() -> None:
    assert _seconds(rows=8) < 1.15 * _seconds(rows=1)


def test_a_longer_context_costs_more_and_several_sequences_most() -> None:
    assert _seconds(context=32768) > _seconds(context=1024)
    assert _seconds(rows=8, sequences=8, context=32768) > 1.25 * _seconds(rows=8, context=32768)


def test_every_operation_of_a_decoder_is_there() -> None:
    names = {part.name for part in forward_parts(SMALL, kernels=H200, quant="bf16", degree=2, rows=4, context=64)}
    assert names == {
        *("qkv", "rope_kv", "attention", "o", "gate_up", "activation", "down", "norm"),
        *("all_reduce", "embedding", "lm_head", "gather"),
    }


def test_one_device_exchanges_nothing() -> None:
    names = {part.name for part in forward_parts(SMALL, kernels=H200, quant="bf16", degree=1, rows=4, context=64)}
    assert not names & {"all_reduce", "gather"}


def test_the_host_comes_on_top() -> None:
    parts = forward_parts(SMALL, kernels=H200, quant="bf16", degree=2, rows=4, context=64, host=Host.of("vllm"))
    alone = forward_parts(SMALL, kernels=H200, quant="bf16", degree=2, rows=4, context=64)
    assert _total(parts) - _total(alone) == pytest.approx(Host.of("vllm").step_s + Host.of("vllm").group_s)


def test_the_fastest_collective_is_a_measured_one_and_fused_is_listed() -> None:
    times = all_reduce_times(H200, num_bytes=131072, degree=4)
    assert set(times) == {"nccl", "vllm_custom", "sglang_custom", "trtllm", FUSED}
    assert times[fastest(times)].seconds == min(time.seconds for name, time in times.items() if name != FUSED)
    assert times[FUSED].seconds < times[fastest(times)].seconds < times["nccl"].seconds


def test_the_collective_asked_for_is_the_one_that_is_paid() -> None:
    def paid_s(collective: str) -> float:
        parts = forward_parts(LARGE, kernels=H200, quant="bf16", degree=4, rows=8, context=64, collective=collective)
        return sum(part.seconds for part in parts if part.name == "all_reduce")

    one = all_reduce_times(H200, num_bytes=131072, degree=4)
    assert paid_s("nccl") == pytest.approx((2 * LARGE.num_layers + 1) * one["nccl"].seconds)
    assert paid_s("nccl") > 2 * paid_s("trtllm")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"quant": "int5"}, "quant is 'int5'; did you mean int"),
        ({"collective": "vllm_costum"}, "collective is 'vllm_costum'; did you mean vllm_custom"),
        ({"sequences": 9}, "sequences is 9; expected 1 to 8"),
    ],
)
def test_what_does_not_exist_is_named(changed: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"quant": "bf16", "degree": 2, "rows": 8, "context": 64} | changed
    with pytest.raises(ValueError, match=complaint):
        forward_parts(SMALL, kernels=H200, **asked)
