from dataclasses import replace

import pytest

from swiftspec.devices import named_device
from swiftspec.models.heads import HEADS
from swiftspec.models.published import known_model
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import weight_bytes
from swiftspec.planner.memory import GRAPHS_BYTES, MemoryModel
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.space import feasible_options
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from tests.planner.pairs import PAIR, composed_profile
from tools.iid_trace import synthesise_trace

TARGET, DRAFT = PAIR[Role.TARGET], PAIR[Role.DRAFT]
GIB = 2**30


def model(quantisation: str = "bf16", device: str = "h100-sxm") -> MemoryModel:
    return MemoryModel(device=named_device(device), specs=PAIR, quantisation=dict.fromkeys(Role, quantisation))


def placed(policy: str, *sizes: int, **shape: int) -> Option:
    return Option.placed(make_policy(policy, **shape), sizes)


# Beside a shard of the head, every rank has the whole embedding: bf16, of 128,256 tokens and 8,192 numbers.
WEIGHTS_OF_4 = weight_bytes(sharded(TARGET, 4), "bf16") + (128256 - sharded(TARGET, 4).vocab_size) * 8192 * 2


def test_groups_hold_weights_kv_and_a_reserve() -> None:
    target, draft = model().groups(placed("swiftspec", 4, 2, verify_rows=8, tree_capacity=160), context=1000)
    assert (target.devices, draft.devices) == ((0, 1, 2, 3), (4, 5))
    assert target.weights_bytes == {Role.TARGET: WEIGHTS_OF_4}
    # 80 layers, 2 of 8 key/value heads of 128, keys and values, 2 bytes; 8 slots of the tree besides the prefix.
    assert target.kv_bytes == {Role.TARGET: 80 * 2 * 128 * 2 * 2 * (1000 + 8)}
    assert draft.kv_bytes == {Role.DRAFT: sharded(DRAFT, 2).kv_bytes_per_token("bf16") * (1000 + 160)}
    assert target.reserve_bytes >= GRAPHS_BYTES
    assert target.usable_bytes == int(0.92 * 81559 * 2**20)


def test_a_colocated_pair_shares_its_devices() -> None:
    (group,) = model().groups(placed("serial_chain", 4), context=100)
    assert group.weights_bytes.keys() == set(Role)
    (alone,) = model().groups(placed("autoregressive", 4), context=100)
    assert alone.weights_bytes.keys() == {Role.TARGET}
    assert group.used_bytes > alone.used_bytes + weight_bytes(sharded(DRAFT, 4), "bf16")


def test_several_target_groups_hold_a_copy_each() -> None:
    target, _ = model().groups(placed("dsi", 8, 1, target_groups=2), context=100)
    assert target.weights_bytes == {Role.TARGET: WEIGHTS_OF_4}


def test_deficit_is_what_the_fullest_device_lacks() -> None:
    option = placed("autoregressive", 1)
    (group,) = model().groups(option, context=4096)
    assert model().deficit(option, context=4096) == group.used_bytes - group.usable_bytes > 60 * GIB
    assert model("int4").deficit(option, context=4096) < 0


def test_what_does_not_fit_is_rejected_with_what_it_needs() -> None:
    trace = synthesise_trace((0.6, 0.2), prompt_lengths=(100,), num_tokens=20, seed=1)
    larger = replace(model(), device=replace(named_device("h100-sxm"), memory_bytes=82_200_000_000))
    options, rejected = feasible_options(composed_profile(num_devices=4), trace, num_devices=4, memory=larger)
    degrees = {name: set[int]() for name in ("autoregressive", "serial_chain")}
    for option in options:
        degrees.setdefault(option.policy.name, set()).add(option.degree(Role.TARGET))
    # Two devices have room for the target, but not for a draft as well.
    assert (degrees["autoregressive"], degrees["serial_chain"]) == ({2, 3, 4}, {3, 4})
    assert rejected["autoregressive: does not fit with the target on 1 device, 142 GB of 76 GB each"] == 1
    dsi = [reason for reason in rejected if reason.startswith("dsi: does not fit with the target on 1 device of 2 gro")]
    assert len(dsi) == 1


@pytest.mark.parametrize(
    ("device", "num_devices", "helpful"),
    [
        ("h100-sxm", 1, "2 devices or fp8 would help"),
        ("l40s", 1, "4 devices or int4 would help"),
        ("l40s", 2, "4 devices or fp8 would help"),
    ],
)
def test_the_error_says_how_much_is_missing_and_what_would_help(device: str, num_devices: int, helpful: str) -> None:
    memory = model(device=device)
    smallest = placed("autoregressive", num_devices)
    message = memory.too_big(smallest, context=8192)
    missing = memory.deficit(smallest, context=8192)
    usable, whole = memory.usable_bytes([Role.TARGET]) / 1e9, memory.device.memory_bytes / 1e9
    assert f"are {missing / 1e9:.1f} GB more than the {usable:.1f} GB usable of {whole:.1f} GB" in message
    assert helpful in message


@pytest.mark.parametrize("target", ["llama-3-70b", "qwen2.5-72b"])
def test_70b_in_bf16_fits_on_two_h100_as_people_serve_it(target: str) -> None:
    specs = {Role.TARGET: known_model(target).spec, Role.DRAFT: DRAFT}
    memory = replace(model(), specs=specs)
    assert memory.deficit(placed("autoregressive", 2), context=4096) <= 0


@pytest.mark.parametrize(("policy", "sizes"), [("autoregressive", (2,)), ("serial_chain", (4,)), ("swiftspec", (4, 2))])
def test_caches_of_all_requests_fill_the_fullest_device(policy: str, sizes: tuple[int, ...]) -> None:
    option = placed(policy, *sizes)
    tokens = model().cached_tokens(option, context=1000)
    groups = model().groups(option, context=1000)
    free = [group.usable_bytes - sum(group.weights_bytes.values()) - group.reserve_bytes for group in groups]
    degrees = [len(group.devices) for group in groups]
    each = [
        sum(sharded(PAIR[role], degree).kv_bytes_per_token("bf16") for role in group.weights_bytes)
        for group, degree in zip(groups, degrees, strict=True)
    ]
    assert all(tokens * bytes_each <= of_group for bytes_each, of_group in zip(each, free, strict=True))
    assert any((tokens + 1) * bytes_each > of_group for bytes_each, of_group in zip(each, free, strict=True))


def test_keys_and_values_in_fp8_take_half_the_room() -> None:
    option = placed("serial_chain", 4)
    usual = model().cached_tokens(option, context=1000)
    assert replace(model(), kv_dtype="fp8").cached_tokens(option, context=1000) == pytest.approx(2 * usual, abs=1)
    assert replace(model(), kv_dtype="fp8").num_blocks(option, longest=1000) == pytest.approx(usual / 8, abs=1)
    (group,), (half,) = (replace(model(), kv_dtype=name).groups(option, context=1000) for name in ("bf16", "fp8"))
    assert {role: num_bytes / 2 for role, num_bytes in group.kv_bytes.items()} == half.kv_bytes


def test_a_smaller_share_of_the_device_leaves_less_room() -> None:
    option = placed("autoregressive", 4)
    less = replace(model(), usable_share=0.5)
    assert less.usable_bytes([Role.TARGET]) == int(model().device.memory_bytes / 2)
    assert less.cached_tokens(option, context=1000) < model().cached_tokens(option, context=1000)


def test_a_head_on_devices_of_its_own_holds_the_targets_embedding() -> None:
    head = HEADS["eagle3"].spec(TARGET)
    pair = MemoryModel(
        device=named_device("h100-sxm"),
        specs={Role.TARGET: TARGET, Role.DRAFT: head},
        quantisation=dict.fromkeys(Role, "bf16"),
    )
    _, apart = pair.groups(placed("ssd_head", 4, 1), context=100)
    (together,) = pair.groups(placed("head_chain", 1), context=100)
    missing = (TARGET.vocab_size - head.vocab_size) * TARGET.hidden_size * 2
    assert apart.weights_bytes[Role.DRAFT] - together.weights_bytes[Role.DRAFT] == missing > 0
