"""Layouts: how they are written, what they refuse, and what a device holds in each."""

import pytest

from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import DenseNetwork, Experts, GroupedAttention, LatentAttention
from swiftspec.models.published import known_model
from swiftspec.models.sharding import sharded
from swiftspec.models.sparse_spec import SparseSpec, in_layout
from swiftspec.models.spec import weight_bytes

R1 = known_model("deepseek-r1").spec


def laid_out(name: str, text: str) -> SparseSpec:
    found = in_layout(known_model(name).spec, DeviceLayout.parse(text))
    assert isinstance(found, SparseSpec)
    return found


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("tp8", (1, 8, 1)), ("dp8", (8, 1, 1)), ("dp2tp4", (2, 4, 1)), ("dp8ep8", (8, 1, 8)), ("tp8ep8", (1, 8, 8))],
)
def test_a_layout_is_read_as_it_is_written(text: str, numbers: tuple[int, int, int]) -> None:
    found = DeviceLayout.parse(text)
    assert (found.dp, found.tp, found.ep) == numbers
    assert (str(found), found.num_devices) == (text, 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8", "layout is '8'; expected such as tp8, dp8, dp2tp4 or dp8ep8"),
        ("ep8", "layout is 'ep8'; expected such as"),
        ("tp4dp2", "layout is 'tp4dp2'; expected such as"),
        ("dp0tp8", "layout is dp0tp8; expected numbers of at least 1"),
        ("dp8ep4", "layout is dp8ep4; expected ep8, since experts are whole on all devices or divided over all"),
    ],
)
def test_what_is_no_layout_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DeviceLayout.parse(text)


def test_a_rank_holds_whole_attention_and_its_part_of_the_experts() -> None:
    divided, ranks = sharded(R1, 8), sharded(laid_out("deepseek-r1", "dp8ep8"), 8)
    assert isinstance(R1, SparseSpec)
    assert isinstance(ranks, SparseSpec)
    assert ranks.attentions == R1.attentions
    assert ranks.expert_parameters == divided.expert_parameters == R1.expert_parameters // 8
    assert DenseNetwork(size=18432) in ranks.feed_forwards
    (experts,) = (part for part in ranks.feed_forwards if isinstance(part, Experts))
    assert experts.num_parameters(7168) - experts.routed_parameters(7168) == 3 * 7168 * experts.shared_size
    assert ranks.vocab_size == R1.vocab_size
    assert weight_bytes(ranks, "fp8") > weight_bytes(divided, "fp8")


def test_ranks_of_several_devices_divide_the_heads_among_these() -> None:
    shard = sharded(laid_out("deepseek-r1", "dp2tp4"), 8)
    assert isinstance(shard, SparseSpec)
    (attention,) = shard.attentions
    assert isinstance(attention, LatentAttention)
    assert attention.num_heads == 128 // 4
    grouped = laid_out("gpt-oss-120b", "dp2tp4").divided(8).attentions
    assert {part.num_kv_heads for part in grouped if isinstance(part, GroupedAttention)} == {2}


def test_a_layout_takes_its_own_number_of_devices() -> None:
    assert laid_out("deepseek-r1", "dp8").objection(8) is None
    assert laid_out("deepseek-r1", "dp8").objection(4) == "the layout dp8 takes 8 devices, not 4"
    assert laid_out("gpt-oss-120b", "dp7ep7").objection(7) == "128 whole experts cannot be divided by 7"


def test_a_plain_layout_changes_no_shape_and_a_dense_model_has_no_experts_to_put_anywhere() -> None:
    dense = known_model("llama-3-8b").spec
    assert in_layout(R1, DeviceLayout(tp=8)) is R1
    assert in_layout(dense, DeviceLayout(tp=8, ep=8)) is dense
    ranked = in_layout(dense, DeviceLayout(dp=8))
    assert ranked.num_parameters == dense.num_parameters
    assert sharded(ranked, 8).num_parameters == dense.num_parameters
