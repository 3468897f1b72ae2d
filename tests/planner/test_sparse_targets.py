"""Sparse targets: their memory, the degrees that hold them, and plans by name."""

import pytest

from swiftspec.models import known_model
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.search.option import Option
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase


def memory_of(target: str, quant: str) -> MemoryModel:
    pair = planned_pair(target, "mtp")
    specs = dict(zip(Role, (model.spec for model in pair), strict=True))
    return MemoryModel(
        device=Deployment(device="h200", num_devices=8).spec, specs=specs, quantisation=dict.fromkeys(Role, quant)
    )


def placed(devices: int, rows: int = 0) -> Option:
    policy = make_policy("head_chain", num_draft_tokens=rows - 1) if rows else make_policy("autoregressive")
    return Option.placed(policy, (devices,))


def test_a_shard_holds_its_part_of_the_experts_and_all_of_a_latent_cache() -> None:
    memory = memory_of("deepseek-v3", "fp8")
    (eight,) = memory.groups(placed(8), context=4096)
    (four,) = memory.groups(placed(4), context=4096)
    assert 671e9 / 8 < eight.weights_bytes[Role.TARGET] < 1.1 * 671e9 / 8
    assert eight.kv_bytes[Role.TARGET] == four.kv_bytes[Role.TARGET] == pytest.approx(61 * 576 * 2 * 4096, rel=0.01)
    assert memory.deficit(placed(8), context=4096) < 0 < memory.deficit(placed(4), context=4096)
    assert memory.too_big(placed(4), context=4096).endswith("; 8 devices or int4 would help")


def test_a_state_is_kept_for_every_verified_row() -> None:
    memory = memory_of("qwen3.5-397b-a17b", "fp8")
    held = [memory.groups(placed(8, rows), context=1024)[0].kv_bytes[Role.TARGET] for rows in (0, 4, 8)]
    spec = known_model("qwen3.5-397b-a17b").spec
    assert isinstance(spec, SparseSpec)
    shard = spec.divided(8)
    state = shard.fixed_bytes("bf16", context=1024, rows=0)
    assert held[2] - held[1] == 4 * (state + shard.kv_bytes_per_token("bf16"))
    assert memory.is_recurrent
    assert not memory_of("deepseek-v3", "fp8").is_recurrent


def test_requests_at_once_share_the_room_that_states_leave() -> None:
    hybrid, latent = (
        memory_of(name, "fp8").cached_tokens(placed(8), context=1024) for name in ("qwen3.5-397b-a17b", "deepseek-v3")
    )
    assert 0 < latent < hybrid


def test_groups_that_cannot_divide_the_target_are_excluded() -> None:
    allowed = AllowedDegrees(specs={role: known_model("qwen3-235b-a22b").spec for role in Role})
    assert allowed.objection(placed(8)) is None
    objection = allowed.objection(placed(3))
    assert objection is not None
    assert objection.endswith("of the target, its attention heads cannot be divided by 3")


def test_a_profile_has_the_degrees_that_hold_the_target_and_says_where_its_routing_is_from() -> None:
    deployment = Deployment(device="h200", num_devices=8, quant="fp8")
    profile = deployment.profile("qwen3-30b-a3b", "eagle3", max_context=512)
    assert {step.degree for step in profile.steps if step.role is Role.TARGET} == {1, 2, 4, 8}
    assert any("c = 0.57, assumed" in source for source in profile.sources)
    (step,) = (
        step
        for step in profile.steps
        if (step.role, step.phase, step.degree, step.rows, step.context) == (Role.TARGET, Phase.VERIFY, 8, 8, 512)
    )
    assert step.provenance is Provenance.ASSUMED
    drafts = {step.provenance for step in profile.steps if step.role is Role.DRAFT and step.phase is Phase.EXPAND}
    assert Provenance.ASSUMED not in drafts


def test_whole_experts_and_a_given_correlation() -> None:
    target, head = planned_pair("deepseek-v3", "mtp", layout=DeviceLayout(tp=2, ep=2))
    for model in (target, head):
        assert isinstance(model.spec, SparseSpec)
        assert model.spec.experts is not None
        assert model.spec.experts.is_divided_whole
    given = Deployment(device="h200", num_devices=1, expert_correlation=0.3)
    assert (given.routing.correlation, given.routing.source) == (0.3, "given")
    with pytest.raises(ValueError, match="layout is dp2; llama-3-8b has no experts, so that its ranks would share no"):
        planned_pair("llama-3-8b", "llama-3.2-1b", layout=DeviceLayout(dp=2))


def test_experts_between_measured_ones_are_said_to_be() -> None:
    deployment = Deployment(device="h200", num_devices=8, quant="fp8")
    for name, is_measured in (("glm-4.5", False), ("qwen3-235b-a22b", True)):
        profile = deployment.profile(name, "eagle3", max_context=512)
        said = f"experts of {name}, which are in no table, between the nearest measured ones"
        assert (said in profile.sources) is not is_measured


def test_experts_without_a_table_are_refused() -> None:
    deployment = Deployment(device="h200", num_devices=8, quant="int8")
    with pytest.raises(ValueError, match=r"target is glm-4\.5; the op tables of h200-sxm do not have 160 experts"):
        deployment.profile("glm-4.5", "eagle3", max_context=512)
