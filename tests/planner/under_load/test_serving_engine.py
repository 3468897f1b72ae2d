"""A target under an engine, with what decides how long its steps take."""

import numpy as np
import pytest

from swiftspec.costmodel.steps import StepWork
from swiftspec.devices import DEVICES
from swiftspec.engines.description import Engine
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.trtllm import TRTLLM
from swiftspec.engines.vllm import VLLM
from swiftspec.models import known_model
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.sparse_spec import in_layout
from swiftspec.planner.under_load.composed_engine import ComposedEngine, DraftModel


@pytest.mark.parametrize(
    ("engine", "late_s"),
    [
        (VLLM.at("0.25"), VLLM.late_round_s),
        (VLLM.at("0.26"), 0.0),
        (SGLANG.as_of("2025-12"), SGLANG.late_round_s),
        (SGLANG, 0.0),
    ],
)
def test_a_round_that_is_formed_late_takes_longer(engine: Engine, late_s: float) -> None:
    spec = known_model("llama-3.1-8b").spec
    draft = DraftModel(spec=known_model("llama-3.2-1b").spec, quant="bf16")
    on = ComposedEngine(engine=engine, device=DEVICES["h100-sxm"], target=spec, quant="bf16", drafts=draft)
    chains = on.chains(forward_rows=(2, 1, 1), rows=4, tokens=np.array([2]))
    work = StepWork(sequences=1, rows_each=4, cache_tokens=500, sampled=4)
    assert on.under_load(chains).step_s(work) - on.step_s(work) == pytest.approx(late_s + on.added.round_s)
    assert on.under_load().step_s(work) == on.step_s(work)


def in_ranks(engine: Engine, layout: str) -> ComposedEngine:
    target = in_layout(known_model("deepseek-r1").spec, DeviceLayout.parse(layout))
    return ComposedEngine(engine=engine, device=DEVICES["h200-sxm"], degree=8, target=target, quant="fp8")


@pytest.mark.parametrize(
    ("engine", "tokens", "requests"), [(VLLM, 8 * 8192, 8 * 1024), (SGLANG, 8192, 2048), (TRTLLM, 8 * 8192, 8 * 2048)]
)
def test_limits_are_of_each_rank_or_of_all(engine: Engine, tokens: int, requests: int) -> None:
    limits = in_ranks(engine, "dp8ep8").limits
    assert (limits.step_tokens, limits.requests) == (tokens, requests)
    assert in_ranks(engine, "tp8ep8").limits.step_tokens == 8192


def test_each_rank_keeps_the_cache_of_its_own_requests() -> None:
    """Of a latent one every device of a rank has a copy."""
    divided, ranks, both = (
        in_ranks(SGLANG, layout).room(beside_draft=False) for layout in ("tp8ep8", "dp8ep8", "dp2tp4")
    )
    assert ranks > 5 * divided, "eight caches, beside more weights"
    assert 1.8 * divided < both < 2 * divided


@pytest.mark.parametrize("target", ["llama-3.1-70b", "deepseek-r1"])
def test_a_cache_in_fp8_has_twice_the_room_and_is_read_faster(target: str) -> None:
    """Dense attention and latents alike, by tables of kernels that read fp8."""
    spec = known_model(target).spec
    usual, fp8 = (
        ComposedEngine(
            engine=VLLM,
            device=DEVICES["h200-sxm"],
            degree=8,
            target=spec,
            quant="fp8",
            settings={"kv_cache_dtype": name},
        )
        for name in ("auto", "fp8")
    )
    assert [VLLM.kv_dtype(each.device, each.quant, each.settings) for each in (usual, fp8)] == ["bf16", "fp8"]
    assert fp8.room(beside_draft=False) == pytest.approx(2 * usual.room(beside_draft=False), abs=2)
    work = StepWork(sequences=64, rows_each=1, cache_tokens=64 * 16_000, sampled=64)
    assert fp8.step_s(work) < 0.97 * usual.step_s(work)


def test_an_engine_takes_the_cache_of_its_checkpoints_by_itself_unless_it_is_told() -> None:
    device = DEVICES["h100-sxm"]
    assert (TRTLLM.kv_dtype(device, "fp8"), VLLM.kv_dtype(device, "fp8")) == ("fp8", "bf16")
    assert TRTLLM.kv_dtype(device, "fp8", {"kv_cache_dtype": "bfloat16"}) == "bf16"
    # Times of latents, whose format it chose itself, are those that its constants were fitted with.
    latent, b200 = known_model("deepseek-r1").spec, DEVICES["b200"]
    assert (SGLANG.kv_dtype(b200, "nvfp4"), SGLANG.read_dtype(b200, "nvfp4", latent)) == ("fp8", "bf16")
    assert SGLANG.read_dtype(b200, "nvfp4", latent, {"kv_cache_dtype": "fp8_e4m3"}) == "fp8"


def test_a_step_has_a_graph_as_long_as_every_rank_has() -> None:
    spread = in_ranks(VLLM, "dp8ep8")
    rows = 8 * spread.limits.captured_tokens
    within, beyond = (
        spread.step_s(StepWork(sequences=count, cache_tokens=count, sampled=count)) for count in (rows, rows + 8)
    )
    assert within == pytest.approx(beyond, rel=0.1)
    assert in_ranks(VLLM, "dp8ep8").under_load().ranks == 8
