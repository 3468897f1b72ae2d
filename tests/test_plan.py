import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.documents import ModelRef, Origin, Spread
from swiftspec.plan import Basis, Candidate, Plan, Prediction
from swiftspec.policies.base import Value
from swiftspec.policies.effects import Role
from swiftspec.policies.swiftspec import SwiftSpec
from swiftspec.profile import Provenance
from swiftspec.timeline import Figures, Metrics

ORIGIN = Origin(command="swiftspec plan", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")
METRICS = Metrics(
    figures=Figures(tokens_per_s=100.0, round_s=Spread(median=0.03, p95=0.04), tokens_per_round=3.0),
    num_tokens=300,
    rounds=100,
    ttft_s=0.1,
    tpot_s=0.01,
    overlap_fraction=0.8,
    verify_s=0.025,
    tail_s=None,
    hit_fraction=0.5,
    mean_round_s=0.03,
    target_busy=0.9,
    draft_busy=0.7,
    wasted_draft=0.4,
)
PREDICTION = Prediction(
    metrics=METRICS, tokens_per_s_low=95.0, tokens_per_s_high=105.0, provenance={Provenance.MEASURED: 1.0}
)


def candidate(policy: str, groups: dict[Role, tuple[int, ...]], **shape: Value) -> Candidate:
    return Candidate(policy=policy, shape=shape, groups=groups, prediction=PREDICTION)


SWIFTSPEC = candidate("swiftspec", {Role.TARGET: (0,), Role.DRAFT: (1,)}, verify_rows=6, expand_rows=2)
AUTOREGRESSIVE = candidate("autoregressive", {Role.TARGET: (0, 1)})


def plan(*, chosen: Candidate = SWIFTSPEC, alternatives: tuple[Candidate, ...] = (), num_devices: int = 2) -> Plan:
    return Plan(
        origin=ORIGIN,
        device="none",
        num_devices=num_devices,
        target=ModelRef(model="demo/target", inflate="layers=24", dtype="bfloat16"),
        draft=ModelRef(model="demo/draft", dtype="float32"),
        profile=Basis(path="profile.json", sha256="0" * 64),
        trace=Basis(path="trace.npz", sha256="1" * 64),
        max_new_tokens=64,
        chosen=chosen,
        alternatives=alternatives,
        num_simulated=9,
        rejected={"too wide": 3},
    )


def test_saved_plan_loads_as_it_was(tmp_path: Path) -> None:
    saved = plan(alternatives=(AUTOREGRESSIVE,))
    saved.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == saved


def test_candidate_builds_its_policy() -> None:
    assert SWIFTSPEC.build() == SwiftSpec(verify_rows=6, expand_rows=2)


def test_candidate_describes_itself() -> None:
    assert SWIFTSPEC.describe() == "swiftspec 1+1 (verify_rows=6, expand_rows=2)"
    assert AUTOREGRESSIVE.describe() == "autoregressive 2"
    assert AUTOREGRESSIVE.devices == {0, 1}


def test_candidates_go_by_policy_the_chosen_first() -> None:
    assert list(plan(alternatives=(AUTOREGRESSIVE,)).candidates) == ["swiftspec", "autoregressive"]


BOTH = {"target": [0], "draft": [1]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "magic"}, "policy is 'magic'; expected one of"),
        ({"shape": {"verify_rows": 1}}, "verify_rows is 1; expected at least 2"),
        ({"shape": {"width": 1}}, "swiftspec has no field 'width'"),
        ({"shape": {"name": 1}}, "swiftspec has no field 'name'"),
        ({"groups": {"target": [0]}}, "groups are of target; swiftspec needs those of draft, target"),
        ({"groups": {}}, "groups are of nobody; swiftspec needs"),
        ({"policy": "serial_tree", "shape": {}}, "groups are of draft, target; serial_tree needs those of target"),
        ({"groups": BOTH | {"draft": [0]}}, r"groups are \[\(0,\), \(0,\)\]; expected non-empty and disjoint ones"),
        ({"groups": BOTH | {"target": [0, 0]}}, "expected non-empty and disjoint ones"),
        ({"groups": BOTH | {"draft": []}}, "expected non-empty and disjoint ones"),
    ],
)
def test_impossible_candidates_are_refused(changes: dict[str, Any], message: str) -> None:
    content = json.loads(plan().to_json())
    content["chosen"] |= changes
    with pytest.raises(ValueError, match=f"^plan.json: chosen is .*; {message}"):
        Plan.parse(content, source="plan.json")


@pytest.mark.parametrize("devices", [(2,), (-1,)])
def test_devices_beyond_the_plans_own_are_refused(devices: tuple[int, ...]) -> None:
    misplaced = candidate("autoregressive", {Role.TARGET: devices})
    for chosen, alternatives in ((misplaced, ()), (SWIFTSPEC, (misplaced,))):
        with pytest.raises(ValueError, match=f"autoregressive is on devices {devices[0]}; num_devices is 2"):
            plan(chosen=chosen, alternatives=alternatives)


def test_policy_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alternatives are \['swiftspec'\]; expected one of each policy"):
        plan(alternatives=(SWIFTSPEC,))


def test_prediction_with_nan_is_refused() -> None:
    content = json.loads(plan().to_json())
    content["chosen"]["prediction"]["metrics"]["figures"]["tokens_per_s"] = float("nan")
    with pytest.raises(ValueError, match=r"chosen.prediction.metrics.figures.tokens_per_s is nan; input should be"):
        Plan.parse(content, source="plan.json")
