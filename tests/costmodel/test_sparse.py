"""Sparse forwards: experts touched, tables of experts between row counts, and what is left out of them."""

from collections import defaultdict
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.expert_shapes import ExpertCurve, ExpertShape
from swiftspec.costmodel.forward import forward_parts
from swiftspec.costmodel.importing import select_experts
from swiftspec.costmodel.kernel_latency import Kernels, UnknownShapeError
from swiftspec.costmodel.routing import ASSUMED_ROUTING, Routing, independent
from swiftspec.costmodel.shipped import kernels_of, tables_of
from swiftspec.devices import named_device
from swiftspec.models import known_model
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import GroupedAttention, LatentAttention
from swiftspec.models.sparse_spec import SparseSpec, in_layout
from swiftspec.timing.latency import Part, Provenance

H200 = kernels_of("h200-sxm")
UNLIKE = Routing(correlation=1.0, source="given")
ALIKE = Routing(correlation=0.0, source="given")


def parts_of(name: str, *, rows: int = 1, whole: bool = False, kernels: Kernels = H200, **more: Any) -> list[Part]:
    spec = known_model(name).spec
    assert isinstance(spec, SparseSpec)
    arguments: dict[str, Any] = {"quant": "fp8", "degree": 8, "context": 1024, **more}
    spec = in_layout(spec, DeviceLayout(tp=8, ep=8)) if whole else spec
    return list(forward_parts(spec, kernels=kernels, rows=rows, **arguments))


def seconds(parts: list[Part], name: str | None = None) -> float:
    return sum(part.seconds for part in parts if name in (None, part.name))


def test_experts_touched_by_rows_in_closed_form() -> None:
    experts = {"num_experts": 256, "num_active": 8}
    assert independent(1, **experts) == 8
    assert UNLIKE.touched(4, sequences=1, **experts) == pytest.approx(256 * (1 - (1 - 8 / 256) ** 4))
    assert ALIKE.touched(4, sequences=1, **experts) == pytest.approx(8)
    # Rows of sequences of their own are independent, however alike the rows of each are.
    assert ALIKE.touched(4, sequences=4, **experts) == pytest.approx(UNLIKE.touched(4, sequences=1, **experts))


def test_the_assumed_correlation_is_what_its_source_measured() -> None:
    """Four consecutive tokens load 2.5 times the experts of one, with many experts."""
    touched = ASSUMED_ROUTING.touched(4, sequences=1, num_experts=256, num_active=8)
    assert touched / 8 == pytest.approx(2.6, abs=0.1)


@pytest.mark.parametrize("correlation", [-0.1, 1.5])
def test_a_correlation_that_cannot_be(correlation: float) -> None:
    with pytest.raises(ValueError, match=f"expert_correlation is {correlation}; expected 0 to 1"):
        Routing(correlation=correlation, source="given")


def test_between_row_counts_time_is_linear_in_experts_touched() -> None:
    curve = ExpertCurve.of("kernel", ExpertShape("bf16", 64, 64, 2, 8, 1, 1), {1: 10.0, 4: 40.0, 64: 90.0})
    assert [curve.at(rows) for rows in (1, 4, 64)] == [10.0, 40.0, 90.0]
    touched = [independent(rows, num_experts=8, num_active=2) for rows in (1, 2, 4)]
    assert curve.at(2) == pytest.approx(10 + 30 * (touched[1] - touched[0]) / (touched[2] - touched[0]))
    assert curve.touching(touched[1]) == pytest.approx(curve.at(2))
    assert curve.at(128) == pytest.approx(180.0)


@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm", "b200"])
def test_a_row_count_that_is_left_out_is_met_within_six_percent(device: str) -> None:
    """Every third one is left out, in each of the three ways."""
    tables = tables_of(device)
    assert tables is not None
    columns = tables.tables["experts"]
    times: dict[tuple[str, ExpertShape], dict[int, float]] = defaultdict(dict)
    names = ("framework", *ExpertShape._fields, "rows", "latency_s")
    for framework, *shape, rows, value in zip(*(columns[name].tolist() for name in names), strict=True):
        times[framework, ExpertShape(*shape)][rows] = value
    errors = []
    for (_, key), measured in times.items():
        ordered = sorted(measured)
        for first in range(1, 4):
            held = ordered[first:-1:3]
            known = {rows: value for rows, value in measured.items() if rows not in held}
            curve = ExpertCurve.of("", key, known)
            errors += [abs(curve.at(rows) / measured[rows] - 1) for rows in held]
    assert len(errors) > 15000
    assert mean(errors) < 0.06


def row(rows: int, latency_us: float, **more: str | int) -> dict[str, str | int | float]:
    shape: dict[str, str | int] = {
        "dtype": "fp8",
        "hidden": 7168,
        "size": 2048,
        "active": 8,
        "experts": 256,
        "parts": 8,
        "holders": 1,
    }
    about = {"framework": "vllm", "version": "0.24.0", "kernel": "fast"}
    return {**about, **shape, "rows": rows, "latency_us": latency_us, **more}


def test_the_fastest_plausible_kernel_of_the_newest_version_is_kept() -> None:
    rows = [57.0, 68.0, 84.0, 112.0, 155.0]
    counts = [1, 2, 4, 8, 16]
    fast = [row(count, us) for count, us in zip(counts, rows, strict=True)]
    slow = [row(count, us * 1.5, kernel="slow") for count, us in zip(counts, rows, strict=True)]
    old = [row(count, us / 2, version="0.9.0") for count, us in zip(counts, rows, strict=True)]
    untuned = [row(count, us * 12, kernel="untuned") for count, us in zip(counts, rows, strict=True)]
    kept, left_out = select_experts([*slow, *untuned, *old, *fast], device="h200-sxm")
    assert {(one["kernel"], one["version"]) for one in kept} == {("fast", "0.24.0")}
    assert len(kept) == 5
    assert len(left_out) == 1
    assert left_out[0].startswith("vllm 0.24.0 untuned, fp8: 1 shapes at ")


def test_shipped_tables_name_what_was_implausible() -> None:
    tables = tables_of("h200-sxm")
    assert tables is not None
    assert any("flashinfer_cutlass" in line and "vllm 0.24.0" in line for line in tables.left_out)
    assert set(tables.values("experts", "framework")) == {"sglang", "trtllm", "vllm"}


def test_a_verification_costs_more_than_a_step_and_less_if_rows_agree() -> None:
    alone = seconds(parts_of("deepseek-v3"))
    unlike, assumed, alike = (
        seconds(parts_of("deepseek-v3", rows=8, routing=routing)) for routing in (UNLIKE, ASSUMED_ROUTING, ALIKE)
    )
    assert alone < alike < assumed < unlike
    assert 1.3 < unlike / alone < 1.6  # research on the same tables: 1.43
    experts = {part.name: part.provenance for part in parts_of("deepseek-v3", rows=8)}["experts"]
    assert experts is Provenance.ASSUMED
    assert {part.name: part.provenance for part in parts_of("deepseek-v3", rows=8, routing=UNLIKE, sequences=8)}[
        "experts"
    ] in (Provenance.MEASURED, Provenance.INTERPOLATED)


def test_latent_attention_reads_prompts_over_keys_of_every_head_and_verifies_over_the_latent_cache() -> None:
    spec = known_model("deepseek-v3").spec
    assert isinstance(spec, SparseSpec)
    ((part, _),) = spec.divided(8).attentions.items()
    assert isinstance(part, LatentAttention)
    width, head = part.kv_rank + part.rotary_dim, part.plain_dim + part.rotary_dim + part.value_dim
    flops = named_device("h200-sxm").peak_flops["bf16"] * CONSTANTS["flops_share"]
    for kernels in (kernels_of("h200-sxm"), Kernels(named_device("h200-sxm"))):
        prompt = kernels.latent_attention(part, rows=8192, context=0, sequences=1).seconds
        computing = 8192 * 8193 / 2 * part.num_heads * 2 * head / flops
        assert prompt == pytest.approx(computing + CONSTANTS["gemm_floor_s"])
        # Behind a cache its keys are made, too: still less than to multiply over the wide latent vectors.
        behind = kernels.latent_attention(part, rows=4096, context=4096, sequences=1).seconds
        absorbed = 4096 * 6144.5 * part.num_heads * 2 * (width + part.kv_rank) / flops
        assert computing * 0.75 < behind < absorbed / 2
        verified = kernels.latent_attention(part, rows=8, context=8192, sequences=1).seconds
        assert verified >= 8 * 8196.5 * part.num_heads * 2 * (width + part.kv_rank) / flops


def test_operations_of_the_layers_that_a_model_has() -> None:
    names = {model: {part.name for part in parts_of(model)} for model in ("deepseek-v3.2", "qwen3.5-397b-a17b")}
    assert {"absorbed", "indexer", "experts", "router", "gate_up"} <= names["deepseek-v3.2"]
    assert {"recurrence", "attention", "gate", "experts"} <= names["qwen3.5-397b-a17b"]
    assert "indexer" not in {part.name for part in parts_of("deepseek-v3")}
    dense = {part.name for part in parts_of("gemma-3-27b", quant="bf16")}
    assert not dense & {"experts", "router", "recurrence", "absorbed"}


def test_whole_experts_are_looked_up_as_such_and_exchange_as_much() -> None:
    by_width, whole = parts_of("deepseek-v3", rows=4), parts_of("deepseek-v3", rows=4, whole=True)
    assert seconds(by_width, "all_reduce") == seconds(whole, "all_reduce") > 0
    assert seconds(by_width, "experts") != seconds(whole, "experts")


def test_parts_that_are_left_out_cost_nothing() -> None:
    whole = SparseSpec.of_alike(known_model("llama-3.1-8b").spec)
    half = [replace(layer, attention=None) if index % 2 else layer for index, layer in enumerate(whole.layers)]

    def parts(spec: SparseSpec) -> list[Part]:
        return list(forward_parts(spec, kernels=H200, quant="bf16", degree=2, rows=4, context=2048))

    before, after = parts(whole), parts(replace(whole, layers=tuple(half)))
    for name, share in (("attention", 1 / 2), ("o", 1 / 2), ("down", 1), ("all_reduce", (24 + 24 + 1) / (32 + 32 + 1))):
        assert seconds(after, name) == pytest.approx(share * seconds(before, name)), name


def test_values_that_are_keys_and_queries_that_are_not_compressed_change_one_product() -> None:
    whole = SparseSpec.of_alike(known_model("llama-3.1-8b").spec)
    (attention,) = whole.attentions
    assert isinstance(attention, GroupedAttention)
    taken = replace(
        whole, layers=tuple(replace(layer, attention=replace(attention, takes_keys=True)) for layer in whole.layers)
    )
    lite = known_model("deepseek-v2-lite").spec
    for spec, width, inputs in ((whole, 6144, 4096), (taken, 5120, 4096), (lite, 16 * 192 + 576, 2048)):
        parts = list(forward_parts(spec, kernels=H200, quant="bf16", degree=1, rows=4, context=2048))
        product = H200.gemm(rows=4, n=width, k=inputs, quant="bf16")
        assert seconds(parts, "qkv") == pytest.approx(spec.num_layers * product.seconds)


def test_norms_over_all_heads_are_two_kernels_and_an_exchange_in_every_layer() -> None:
    spec = known_model("minimax-m2.5").spec
    assert isinstance(spec, SparseSpec)
    (attention,) = spec.attentions
    assert isinstance(attention, GroupedAttention)
    alone = replace(attention, norms_heads_together=False)
    usual = replace(spec, layers=tuple(replace(layer, attention=alone) for layer in spec.layers))

    def parts(one: SparseSpec, degree: int) -> list[Part]:
        return [*forward_parts(one, kernels=H200, quant="fp8", degree=degree, rows=4, context=128, collective="nccl")]

    per_layer = {
        (name, degree): (seconds(parts(spec, degree), name) - seconds(parts(usual, degree), name)) / spec.num_layers
        for name in ("norm", "all_reduce")
        for degree in (1, 4)
    }
    assert per_layer["all_reduce", 1] == 0
    exchange = H200.all_reduce(num_bytes=2 * 4 * 4, degree=4, implementation="nccl").seconds
    assert per_layer["all_reduce", 4] == pytest.approx(exchange)
    kernel = H200.elementwise(num_bytes=0).seconds
    assert 2 * kernel < per_layer["norm", 1] < 2.1 * kernel


def test_windows_and_states_do_not_grow_with_context() -> None:
    for name, quant in (("gpt-oss-120b", "mxfp4"), ("qwen3.5-397b-a17b", "fp8")):
        near, far = (seconds(parts_of(name, quant=quant, context=context)) for context in (4096, 65536))
        dense = known_model("qwen3-32b").spec
        growth = [
            sum(part.seconds for part in forward_parts(dense, kernels=H200, quant="fp8", degree=8, rows=1, context=c))
            for c in (4096, 65536)
        ]
        assert 0 < far - near < growth[1] - growth[0]


def test_experts_that_no_table_has() -> None:
    with pytest.raises(
        UnknownShapeError, match="op tables of h200-sxm do not have 160 experts of width 1536"
    ) as raised:
        parts_of("glm-4.5", quant="int8")
    assert "8 of them active over 5120 values, in int8, divided by 8" in str(raised.value)
    with pytest.raises(UnknownShapeError, match="in int8, divided by 8; it has them in bf16, fp8"):
        parts_of("qwen3-235b-a22b", quant="int8")


def test_experts_in_nvfp4_take_less_than_in_fp8_and_need_its_units() -> None:
    kernels = kernels_of("b200")
    for rows in (1, 64, 1024):
        parts = (parts_of("deepseek-r1", quant=quant, rows=rows, kernels=kernels) for quant in ("nvfp4", "fp8"))
        four, eight = (seconds(found, "experts") for found in parts)
        assert 0.3 * eight < four < eight
    with pytest.raises(ValueError, match="quant is nvfp4; h200-sxm has no fp4 units, which it needs"):
        parts_of("deepseek-r1", quant="nvfp4")


def test_a_device_without_tables_is_priced_by_bytes() -> None:
    roofline = Kernels(named_device("h200-sxm"))
    few, many = (seconds(parts_of("glm-4.5", rows=rows, kernels=roofline), "experts") for rows in (1, 16))
    assert 3 < many / few < 12
    ratio = seconds(parts_of("deepseek-v3", rows=8)) / seconds(parts_of("deepseek-v3", rows=8, kernels=roofline))
    assert 0.7 < ratio < 2.0
