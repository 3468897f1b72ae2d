"""Routing of a trace in plans and comparisons of a target with as many experts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli.app import main
from swiftspec.costmodel.measured_routing import measured_routing
from swiftspec.costmodel.routing import ASSUMED_ROUTING
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.compare import compare_kinds
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.recorded_routing import with_recorded_routing
from swiftspec.policies.effects import Role
from swiftspec.reports.kinds import kind_sections
from swiftspec.timing.latency import Provenance
from tests.cli.samples import trace

TARGET = "qwen3-30b-a3b"  # 128 experts, 8 active
DEPLOYMENT = Deployment(device="h200", num_devices=1)


def sparse_trace(num_experts: int, num_active: int) -> AcceptanceTrace:
    """24 tokens; half of each one's experts are the same for all."""
    rng = np.random.default_rng(0)
    routes = rng.random((24, 2, num_experts)).argsort(-1)[..., :num_active].astype(np.uint8)
    routes[:, 0] = routes[0, 0]
    dense = trace(ranks=(0,) * 24)
    return replace(dense, num_experts=num_experts, prompts=(replace(dense.prompts[0], routes=routes),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    sparse_trace(128, 8).save(folder / "same.npz")
    sparse_trace(16, 2).save(folder / "other.npz")
    trace().save(folder / "dense.npz")
    return folder


def routed(path: Path | None, *, target: str = TARGET, deployment: Deployment = DEPLOYMENT) -> Deployment:
    return with_recorded_routing(deployment, PlannedModel.of(Role.TARGET, target), path)


def test_a_trace_of_as_many_experts_is_used(folder: Path) -> None:
    routing = routed(folder / "same.npz").routing
    measured = measured_routing(AcceptanceTrace.load(folder / "same.npz"), file="same.npz")
    assert measured is not None
    assert routing == measured.routing()
    assert 0.4 < routing.correlation < 0.6
    assert routing.provenance is Provenance.MEASURED


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other.npz", "the target of other.npz has 16 experts, 2 of them active, and qwen3-30b-a3b 128 and 8"),
        ("dense.npz", "dense.npz has no routed experts of consecutive tokens"),
    ],
)
def test_another_trace_is_not_and_the_source_says_why(folder: Path, name: str, reason: str) -> None:
    routing = routed(folder / name).routing
    assert (routing.correlation, routing.provenance) == (ASSUMED_ROUTING.correlation, Provenance.ASSUMED)
    assert routing.source == f"{ASSUMED_ROUTING.source}; none is measured, since {reason}"


def test_what_is_given_comes_first_and_dense_targets_need_none(folder: Path) -> None:
    given = replace(DEPLOYMENT, expert_correlation=0.3)
    assert routed(folder / "same.npz", deployment=given) is given
    assert routed(folder / "same.npz", target="llama-3-8b") is DEPLOYMENT
    assert routed(None) is DEPLOYMENT
    # Plans vary it by what is given.
    assert replace(routed(folder / "same.npz"), expert_correlation=1.0).routing.correlation == 1.0


def test_a_plan_says_which_routing_it_was_made_with(folder: Path, tmp_path: Path) -> None:
    arguments = ["plan", "--target", TARGET, "--draft", "qwen3-0.6b", "--device", "h200", "--devices", "1"]
    more = ["--policy", "serial_chain", "--jobs", "1", "--trace", str(folder / "same.npz")]
    assert main([*arguments, *more, "--out", str(tmp_path / "plan.json")]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    profile = Profile.load(tmp_path / plan["profile"]["path"])
    (source,) = (source for source in profile.sources if "agree with c = " in source)
    assert "measured over 24 output tokens (prompts: 1) of synthetic in float32 in same.npz" in source
    assert Provenance.ASSUMED not in {step.provenance for step in profile.steps if step.role is Role.TARGET}
    assert "experts chosen independently" in json.dumps(plan["sensitivities"])


def test_kinds_use_it_and_say_so(folder: Path) -> None:
    compared = compare_kinds(
        DEPLOYMENT,
        target=TARGET,
        drafts=[],
        clients=(1,),
        text=folder / "same.npz",
        num_jobs=1,
        progress=lambda *_: None,
    )
    assert compared.routing == str(routed(folder / "same.npz").routing)
    to_know = str(kind_sections(compared)[-1].parts[-1])
    assert to_know.endswith(f"Of the target's layers, {compared.routing}.")
