"""Plans for an engine beside which a draft server runs on devices of another kind."""

from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.engines.vllm import VLLM
from swiftspec.export import export_plan
from swiftspec.planner.deployment import Deployment, with_draft_server
from swiftspec.planner.for_device import plan_for
from swiftspec.planner.load import Load
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.under_load.loads import closed_loop_workload
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from tests.builders import constant_profile

TARGET, DRAFT = "llama-3.1-8b", "llama-3.2-1b"


def deployment(**changes: Any) -> Deployment:
    known = {"device": "h100", "num_devices": 1, "engine": "vllm@0.32", "draft_device": "l40s", "output_tokens": 64}
    return Deployment(**{**known, **changes})


def planned(clients: int = 2, **changes: Any) -> Plan:
    options = SearchOptions(load=Load(workload=closed_loop_workload(clients, 256, 64)), num_jobs=1)
    made = plan_for(deployment(**changes), target=TARGET, draft=DRAFT, options=options, progress=lambda *_: None)
    return made.plan


@pytest.fixture(scope="module")
def made() -> Plan:
    return planned()


def test_a_plan_has_drafts_on_both_kinds_of_devices(made: Plan, tmp_path: Path) -> None:
    layouts = {candidate.build().layout for candidate in made.candidates.values()}
    assert layouts == set(Layout)
    assert (made.draft_device, made.draft_devices, made.where) == ("l40s", 1, "1 h100-sxm and 1 l40s")
    apart = made.candidates["ssd"]
    assert (apart.split, apart.groups[Role.DRAFT]) == ("1+1", (1,))
    assert made.under_load is not None
    assert made.under_load.predictions["ssd"].metrics.tpot_s.mean > 0
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").draft_devices == 1


def test_a_slower_device_for_the_draft_is_no_faster(made: Plan) -> None:
    on_host = planned(draft_device="xeon-2x48")

    def tpot_s(plan: Plan) -> float:
        assert plan.under_load is not None
        return plan.under_load.predictions["ssd"].metrics.tpot_s.mean

    assert tpot_s(on_host) > tpot_s(made)


def test_it_is_exported_as_both_commands(made: Plan) -> None:
    exported = export_plan(made, VLLM, policy="ssd", address="ipc:///tmp/a")
    words = exported.draft_server
    assert words[:4] == ("env", "CUDA_VISIBLE_DEVICES=1", "swiftspec", "serve")
    assert words[words.index("--policy") + 1] == "ssd"
    assert words[words.index("--address") + 1] == "ipc:///tmp/a"
    assert "max_running=64," in words[-1], "vLLM's own limit is 1024"
    assert '{"swiftspec": {"address": "ipc:///tmp/a"}}' in exported.arguments
    assert exported.configuration["method"] == "custom_class"
    assert exported.configuration["num_speculative_tokens"] == made.candidates["ssd"].shape["num_draft_tokens"]
    assert not exported.not_expressed
    assert exported.command.index("--role") < exported.command.index(" &\n") < exported.command.index("vllm serve")
    assert not export_plan(made, VLLM, policy="serial_chain").draft_server


def test_its_policy_can_be_asked_for_where_the_target_has_one_device() -> None:
    options = SearchOptions(policy="ssd", load=Load(workload=closed_loop_workload(1, 256, 64)), num_jobs=1)
    found = plan_for(deployment(), target=TARGET, draft=DRAFT, options=options, progress=lambda *_: None)
    assert (found.plan.chosen.policy, found.plan.chosen.split) == ("ssd", "1+1")


def test_the_memory_of_the_draft_is_that_of_its_own_device(made: Plan) -> None:
    memory = deployment().memory(*deployment().pair(TARGET, DRAFT))
    assert memory.usable_bytes([Role.DRAFT]) < memory.usable_bytes([Role.TARGET]) == memory.usable_bytes([*Role])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"engine": "sglang"}, "draft_device is l40s; sglang asks no draft server"),
        ({"engine": "swiftspec"}, "draft_device is l40s; swiftspec asks no draft server"),
        ({"draft_device": "h1000"}, "draft_device is .*h1000"),
        ({"draft_devices": 99}, "draft_device is l40s:99; expected at most 8"),
    ],
)
def test_what_is_wrong_with_the_device_is_said(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        deployment(**changes)


def test_a_profile_of_another_draft_is_refused() -> None:
    profile = constant_profile(expand_s=0.01, verify_s=0.1)
    other = profile.model_copy(update={"draft": profile.draft.model_copy(update={"model": "another"})})
    with pytest.raises(ValueError, match="draft_device is another; it was profiled with that draft"):
        with_draft_server(profile, other, round_s=0.0, provenance=Provenance.MEASURED)
    merged = with_draft_server(profile, profile, round_s=0.002, provenance=Provenance.MEASURED)
    assert merged.draft_profile is not None
    assert {step.role for step in merged.draft_profile.steps} == {Role.DRAFT}
    assert {point.policy for point in merged.host} >= {"ssd", "swiftspec_chain"}
