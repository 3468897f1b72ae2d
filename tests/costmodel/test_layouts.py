"""Time of mixtures in layouts: whose rows a rank computes, what goes between ranks, and which device is the fullest."""

from collections import defaultdict

import numpy as np
import pytest

from swiftspec.costmodel.forward import forward_parts
from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.routing import on_fullest
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.costmodel.steps import ComposedSteps, StepWork
from swiftspec.devices import named_device
from swiftspec.models import known_model
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import Experts
from swiftspec.models.sparse_spec import in_layout
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.latency import Provenance

H200 = kernels_of("h200-sxm")
LAYERS = 58  # of deepseek-r1, with experts


def laid_out(text: str, name: str = "deepseek-r1") -> ModelSpec:
    return in_layout(known_model(name).spec, DeviceLayout.parse(text))


def seconds(spec: ModelSpec, *, rows: int, sequences: int, degree: int = 8) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for part in forward_parts(
        spec, kernels=H200, quant="fp8", degree=degree, rows=rows, sequences=sequences, context=2000
    ):
        found[part.name] += part.seconds
    return found


def test_a_rank_has_the_attention_of_its_own_requests_and_the_experts_of_all() -> None:
    ranks = seconds(laid_out("dp8ep8"), rows=64, sequences=64)
    alone = seconds(known_model("deepseek-r1").spec, rows=8, sequences=8, degree=1)
    for name in ("attention", "qkv", "o", "absorbed", "lm_head"):
        assert ranks[name] == alone[name], name
    divided = seconds(laid_out("tp8ep8"), rows=64, sequences=64)
    assert ranks["experts"] == divided["experts"]
    assert "all_reduce" not in ranks
    gather_s = H200.all_gather(num_bytes=64 * 7168 * 2, degree=8).seconds
    assert ranks["dispatch"] == ranks["combine"] == pytest.approx(LAYERS * gather_s)


def test_ranks_of_several_devices_sum_over_these_and_gather_over_the_ranks() -> None:
    found = seconds(laid_out("dp2tp4"), rows=64, sequences=64)
    alone = seconds(known_model("deepseek-r1").spec, rows=32, sequences=32, degree=4)
    assert found["all_reduce"] == alone["all_reduce"]
    assert found["attention"] == alone["attention"]
    assert found["dispatch"] == pytest.approx(LAYERS * H200.all_gather(num_bytes=64 * 7168 * 2, degree=2).seconds)


def test_the_fullest_rank_decides() -> None:
    whole, nine = (seconds(laid_out("dp8ep8"), rows=count, sequences=count)["attention"] for count in (16, 9))
    assert whole == nine, "one of eight ranks has two of nine requests"


def test_an_exchange_without_a_table_says_so() -> None:
    parts = forward_parts(laid_out("dp8"), kernels=H200, quant="fp8", degree=8, rows=8, sequences=8, context=100)
    known = {part.name: part.provenance for part in parts if part.name in ("dispatch", "combine")}
    assert known["combine"] is Provenance.COMPOSED
    assert known["dispatch"] is not Provenance.COMPOSED


def test_requests_are_spread_and_prompts_go_to_whoever_reads_least() -> None:
    work = StepWork(sequences=9, rows_each=2, cache_tokens=900, chunks=[(100, 0), (700, 5), (600, 0)], sampled=18)
    fullest = work.of_fullest(2)
    assert (fullest.sequences, fullest.cache_tokens, fullest.sampled) == (5, 500, 9)
    assert list(fullest.chunks) == [(700, 5)]
    assert work.of_fullest(1) is work


def test_a_prompt_on_one_rank_takes_longer_than_one_on_each_of_a_fewth_of_its_length() -> None:
    steps = ComposedSteps(spec=laid_out("dp8ep8"), kernels=H200, quant="fp8", degree=8)
    together = steps.seconds(StepWork(chunks=[(8192, 0)], sampled=1))
    spread = steps.seconds(StepWork(chunks=[(1024, 0)] * 8, sampled=8))
    assert together > 2 * spread


@pytest.mark.parametrize(
    ("experts", "devices", "touched"), [(256, 8, 8), (256, 8, 57), (256, 8, 200), (128, 2, 40), (128, 8, 20)]
)
def test_the_device_with_most_touched_experts_in_the_mean(experts: int, devices: int, touched: int) -> None:
    rng, held = np.random.default_rng(0), experts // devices
    drawn = [
        np.bincount(rng.choice(experts, touched, replace=False) // held, minlength=devices).max() for _ in range(2000)
    ]
    found = on_fullest(touched, num_experts=experts, num_devices=devices)
    assert found == pytest.approx(float(np.mean(drawn)), rel=0.1)


def test_a_device_alone_has_all_touched_experts_and_none_has_more_than_it_holds() -> None:
    assert on_fullest(40, num_experts=64, num_devices=1) == 40
    assert on_fullest(64, num_experts=64, num_devices=8) == 8


def test_a_roofline_reads_the_experts_of_the_fullest_device() -> None:
    roofline = Kernels(named_device("h200-sxm"))
    experts = Experts(num_experts=256, num_active=8, size=2048)
    by_width = experts.divided(8, 8)
    part = laid_out("tp8ep8").experts
    assert part is not None
    whole = part.divided(8, 8)
    times = [
        roofline.experts(one, rows=8, touched=57.0, hidden_size=7168, quant="fp8").seconds for one in (by_width, whole)
    ]
    assert 1.1 < times[1] / times[0] < 2
