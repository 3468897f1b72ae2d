"""Profiles composed of operations."""

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.costmodel.compose import RoleModel
from swiftspec.costmodel.device_profile import device_profile
from swiftspec.devices import named_device
from swiftspec.models import known_model
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import Phase

VERIFY = StepKey(Role.TARGET, Phase.VERIFY, degree=2, rows=8, context=512)


def _composed(device: str = "h100-sxm", *, quant: str = "bf16", num_devices: int = 4) -> Profile:
    return device_profile(
        RoleModel(model=known_model("llama-3-70b"), quant=quant),
        RoleModel(model=known_model("llama-3.2-3b"), quant=quant),
        device=device,
        num_devices=num_devices,
        max_context=2048,
        int4_forwards=None,
    )


@pytest.fixture(scope="module")
def profile() -> Profile:
    return _composed()


@pytest.mark.parametrize(
    ("role", "phase"),
    [
        *((Role.TARGET, phase) for phase in (Phase.PREFILL, Phase.VERIFY, Phase.EXIT, Phase.FINISH)),
        *((Role.DRAFT, phase) for phase in (Phase.PREFILL, Phase.EXPAND, Phase.FUZZY)),
    ],
)
def test_every_forward_is_known_at_every_degree(profile: Profile, role: Role, phase: Phase) -> None:
    assert profile.latencies.degrees(phase, role=role) == [1, 2, 3, 4]


def test_a_busy_peer_changes_nothing(profile: Profile) -> None:
    assert profile.step(VERIFY) == profile.step(VERIFY._replace(peer_busy=True))


def test_two_halves_are_a_verification_and_a_second_answer(profile: Profile) -> None:
    def mean_s(phase: Phase) -> float:
        return profile.step(StepKey(Role.TARGET, phase, degree=4, rows=8, context=64)).mean_s

    assert mean_s(Phase.VERIFY) < mean_s(Phase.EXIT) + mean_s(Phase.FINISH) < 1.15 * mean_s(Phase.VERIFY)


def test_shares_say_what_a_step_rests_on(profile: Profile) -> None:
    shares = profile.step(VERIFY._replace(degree=4)).shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares[Provenance.MEASURED] > 0.3
    assert Provenance.ROOFLINE not in shares


def test_a_group_names_its_collective_and_the_others(profile: Profile) -> None:
    assert [(collective.role, collective.degree) for collective in profile.collectives] == [
        (role, degree) for role in Role for degree in (2, 3, 4)
    ]
    for collective in profile.collectives:
        assert collective.implementation in ("sglang_custom", "trtllm", "vllm_custom")
        assert {"nccl", "fused"} <= set(collective.seconds)


def test_without_tables_a_step_is_a_roofline() -> None:
    step = _composed("mi300x", num_devices=2).step(VERIFY)
    assert step.shares[Provenance.ROOFLINE] > 0.8


def test_four_bits_read_faster_than_sixteen(profile: Profile) -> None:
    few_bits = _composed(quant="int4").step(VERIFY)
    assert few_bits.mean_s < 0.5 * profile.step(VERIFY).mean_s
    assert few_bits.shares[Provenance.ROOFLINE] > 0.3


def test_a_group_stays_within_a_node() -> None:
    assert max(_composed(num_devices=12).latencies.degrees(Phase.VERIFY, role=Role.TARGET)) == 8


@pytest.mark.parametrize("quant", ["bf16", "int4"])
def test_a_further_sequence_costs_the_reading_of_its_cache(quant: str) -> None:
    made = _composed(quant=quant, num_devices=8)
    latencies = made.latencies
    spec = known_model("llama-3-70b").spec
    for degree in (1, 2, 8):
        two = StepKey(Role.TARGET, Phase.VERIFY, degree, rows=2, context=1000, sequences=2, peer_busy=True)
        seconds, provenance = latencies.further_sequences(two)
        cache_bytes = 1000 * spec.num_layers * 2 * spec.num_kv_heads * spec.head_dim * 2 / degree
        assert 0.5 < cache_bytes / named_device("h100-sxm").memory_bandwidth_Bps / seconds < 1
        assert provenance is Provenance.COMPOSED
        assert latencies.further_sequences(two._replace(role=Role.DRAFT, peer_busy=False))[0] > 0


def test_nothing_cannot_be_composed() -> None:
    with pytest.raises(ValueError, match="num_devices is 0"):
        _composed(num_devices=0)


def test_features_take_a_hop_as_much_longer_as_they_take_on_a_devices_links(profile: Profile) -> None:
    feature_bytes = 3 * 8192 * 2
    device = named_device("h100-sxm")
    with_head = device_profile(
        RoleModel(model=known_model("llama-3-70b"), quant="bf16"),
        RoleModel(model=known_model("llama-3.2-3b"), quant="bf16", feature_bytes=feature_bytes),
        device=device.name,
        num_devices=1,
        max_context=64,
    )
    assert (profile.feature_bytes, with_head.feature_bytes) == (0, feature_bytes)
    plain, *longer = (with_head.latencies.host_latency(Phase.WAIT, rows=hop_rows(count)) for count in (0, 8, 8000))
    assert plain == profile.latencies.host_latency(Phase.WAIT)
    for count, hop in zip((8, 8000), longer, strict=True):
        assert hop is not None
        assert plain is not None
        assert hop.mean_s - plain.mean_s == pytest.approx(count * feature_bytes / device.link_bandwidth_Bps)
