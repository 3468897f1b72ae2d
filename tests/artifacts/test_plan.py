import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.candidate import named_split
from swiftspec.artifacts.metrics import Figures, Metrics
from swiftspec.artifacts.plan import (
    Basis,
    Candidate,
    Explored,
    Goal,
    GroupMemory,
    Objective,
    Plan,
    Prediction,
    Rejection,
)
from swiftspec.files.document import ModelRef, Origin, Spread
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.base import Value
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance

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


@pytest.mark.parametrize(
    ("devices", "ranks", "target_groups", "split"),
    [(4, 1, 1, "4"), (4, 2, 1, "2x2"), (4, 4, 1, "4x1"), (4, 2, 2, "4x1"), (4, 1, 2, "4")],
)
def test_ranks_are_named_with_the_devices_of_each(devices: int, ranks: int, target_groups: int, split: str) -> None:
    groups = {Role.TARGET: tuple(range(devices)), Role.DRAFT: (devices,)}
    assert named_split(groups, {Role.TARGET: ranks}, target_groups=target_groups) == f"{split}+1"
    divided = AUTOREGRESSIVE.model_copy(update={"ranks": {Role.TARGET: 2}})
    assert divided.describe() == "autoregressive 2x1"


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


def test_devices_beyond_the_plans_own_are_refused() -> None:
    misplaced = candidate("autoregressive", {Role.TARGET: (2,)})
    for chosen, alternatives in ((misplaced, ()), (SWIFTSPEC, (misplaced,))):
        with pytest.raises(ValueError, match="autoregressive is on devices 2; num_devices is 2"):
            plan(chosen=chosen, alternatives=alternatives)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (("num_devices",), 10**11),
        (("num_simulated",), -1),
        (("chosen", "groups", "target"), [-1]),
        (("chosen", "prediction", "tokens_per_s_low"), -1.0),
        (("chosen", "prediction", "provenance", "measured"), -0.5),
        (("chosen", "prediction", "metrics", "ttft_s"), -1.0),
        (("chosen", "prediction", "metrics", "rounds"), -1),
        (("chosen", "prediction", "metrics", "figures", "tokens_per_s"), -1.0),
        (("chosen", "prediction", "metrics", "figures", "round_s", "median"), -1.0),
    ],
)
def test_figures_that_cannot_be_are_refused(field: tuple[str, ...], value: object) -> None:
    content = json.loads(plan().to_json())
    place = content
    for name in field[:-1]:
        place = place[name]
    place[field[-1]] = value
    with pytest.raises(ValueError, match=r"^plan\.json: .*(greater|less) than or equal to|expected no figure below 0"):
        Plan.parse(content, source="plan.json")


def test_policy_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alternatives are \['swiftspec'\]; expected one of each policy"):
        plan(alternatives=(SWIFTSPEC,))


def test_prediction_with_nan_is_refused() -> None:
    content = json.loads(plan().to_json())
    content["chosen"]["prediction"]["metrics"]["figures"]["tokens_per_s"] = float("nan")
    with pytest.raises(ValueError, match=r"chosen.prediction.metrics.figures.tokens_per_s is nan; input should be"):
        Plan.parse(content, source="plan.json")


def explored(policy: str, split: str, num_devices: int, tokens_per_s: float) -> Explored:
    return Explored(
        policy=policy,
        split=split,
        num_devices=num_devices,
        tokens_per_s=tokens_per_s,
        tpot_s=1 / tokens_per_s,
        num_options=3,
    )


def test_a_speed_of_nothing_is_refused() -> None:
    """Others are divided by it: costs, gains, errors."""
    content = json.loads(plan().to_json())
    content["explored"] = [explored("serial_chain", "1", 1, 40.0).model_dump() | {"tokens_per_s": 0.0}]
    with pytest.raises(ValueError, match=r"explored\[0\]\.tokens_per_s is 0\.0; input should be greater than 0"):
        Plan.parse(content, source="plan.json")
    content = json.loads(plan().to_json())
    content["chosen"]["prediction"]["metrics"]["figures"]["tokens_per_s"] = 0.0
    with pytest.raises(ValueError, match=r"chosen\.prediction\.metrics is .*; expected figures\.tokens_per_s above 0"):
        Plan.parse(content, source="plan.json")


def test_a_plan_from_before_goals_is_one_for_tokens_per_s() -> None:
    content = json.loads(plan().to_json())
    later = ("goal", "acceptance", "quantisation", "collectives", "memory", "explored", "sensitivities")
    loaded = Plan.parse({name: value for name, value in content.items() if name not in later}, source="old.json")
    assert loaded.goal == Goal(objective=Objective.TOKENS_PER_S)
    assert (loaded.acceptance, loaded.explored, loaded.sensitivities) == (None, (), ())


def test_the_fastest_cell_of_every_number_of_devices() -> None:
    cells = (
        explored("serial_chain", "2", 2, 50.0),
        explored("swiftspec", "1+1", 2, 70.0),
        explored("serial_chain", "1", 1, 40.0),
    )
    fastest = plan().model_copy(update={"explored": cells}).fastest_by_devices
    assert {count: cell.split for count, cell in fastest.items()} == {1: "1", 2: "1+1"}
    assert list(fastest) == [1, 2]


@pytest.mark.parametrize(
    ("shares", "weak_share", "is_weak"),
    [
        ({Provenance.MEASURED: 1.0}, 0.0, False),
        ({Provenance.COMPOSED: 0.8, Provenance.ROOFLINE: 0.15, Provenance.ASSUMED: 0.05}, 0.2, False),
        ({Provenance.COMPOSED: 0.7, Provenance.ROOFLINE: 0.2, Provenance.ASSUMED: 0.1}, 0.3, True),
    ],
)
def test_a_prediction_without_measurements_is_weak(
    shares: dict[Provenance, float], weak_share: float, is_weak: bool
) -> None:
    chosen = SWIFTSPEC.model_copy(update={"prediction": PREDICTION.model_copy(update={"provenance": shares})})
    subject = plan(chosen=chosen)
    assert subject.weak_share == pytest.approx(weak_share)
    assert subject.is_weak is is_weak


def test_a_device_holds_weights_kv_and_reserve() -> None:
    group = GroupMemory(
        devices=(0, 1),
        weights_bytes={Role.TARGET: 30, Role.DRAFT: 5},
        kv_bytes={Role.TARGET: 3, Role.DRAFT: 1},
        reserve_bytes=2,
        usable_bytes=50,
    )
    assert group.used_bytes == 41


def test_policies_that_share_a_reason_are_rejected_together() -> None:
    rejected = {"swiftspec: too wide": 3, "serial_tree: too wide": 4, "dsi: too few": 1, "no room: at all": 2}
    assert plan().model_copy(update={"rejected": rejected}).rejections == [
        Rejection("too wide", {"serial_tree": 4, "swiftspec": 3}),
        Rejection("no room: at all", {"": 2}),
        Rejection("too few", {"dsi": 1}),
    ]


def test_a_plan_is_shown_in_a_line_and_in_a_notebook_as_a_table(tmp_path: Path) -> None:
    made = plan(alternatives=(AUTOREGRESSIVE,)).model_copy(update={"device": "<b>"})
    assert (
        repr(made)
        == str(made)
        == (
            "Plan(demo/target with demo/draft on 2 <b>: swiftspec 1+1 (verify_rows=6, expand_rows=2), "
            "100.0 tokens/s predicted; 1 alternatives)"
        )
    )


def test_a_path_may_be_text(tmp_path: Path) -> None:
    plan().save(tmp_path / "plan.json")
    assert Plan.load(str(tmp_path / "plan.json")) == plan()


def test_what_a_million_tokens_cost() -> None:
    assert plan().cost_per_million_tokens is None
    priced = plan().model_copy(update={"goal": Goal(price_per_hour=3.6)})
    assert priced.cost_per_million_tokens == pytest.approx(20.0)  # 2 devices, 10,000 s
