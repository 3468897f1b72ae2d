"""What a plan says of drafting: gains, loses or open, by the engine that serves and by what is known of acceptance."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import swiftspec
from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.api import compare_kinds
from swiftspec.artifacts.gain import Verdict
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.report import Report
from swiftspec.engines import engine_named
from swiftspec.export import export_plan
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import plan_for
from swiftspec.planner.search.decision import gain_error
from swiftspec.planner.search.options import SearchOptions
from swiftspec.reports.formatting import drafting

PROFILES = Path(swiftspec.__file__).with_name("profiles")
# Published of an EAGLE-3 head of Qwen3-30B-A3B on SGLang of December 2025: 1.86 tokens a round, 0.72 times plain.
PAIR = ("qwen3-30b-a3b", "eagle3")


@cache
def planned(engine: str, rates: str) -> Plan:
    return plan_for(
        Deployment(device="h100-sxm", num_devices=2, engine=engine, context=128, output_tokens=128),
        target=PAIR[0],
        draft=PAIR[1],
        acceptance=GivenAcceptance.parse(rates, field="acceptance"),
        options=SearchOptions(policy="head_chain", num_jobs=1),
        progress=lambda *_: None,
    ).plan


def test_the_engines_round_decides_whether_a_weak_draft_pays() -> None:
    weak = "0.5,0.25,0.11"
    before, now = (planned(engine, weak).gain for engine in ("sglang@0.5.6", "sglang"))
    assert before is not None
    assert now is not None
    assert before.ratio < 0.85 < 1.05 < now.ratio
    assert before.policy == "head_chain"


def test_a_strong_draft_gains_on_either() -> None:
    gain = planned("sglang", "0.9,0.8,0.7").gain
    assert gain is not None
    assert gain.verdict is Verdict.GAINS
    assert drafting(gain).startswith("Drafting gains: head_chain is ")


def test_an_open_gain_says_what_closes_it_in_the_report_and_in_the_export() -> None:
    plan = planned("sglang@0.5.6", "0.65,0.45,0.3")
    assert plan.gain is not None
    assert plan.gain.verdict is Verdict.OPEN
    assert "Whether drafting gains is open: head_chain is " in drafting(plan.gain)
    assert "measuring both on these devices" in plan.gain.closed_by, "acceptance is given"
    assert plan.gain.closed_by in drafting(plan.gain)
    remarks = export_plan(plan, engine_named("sglang"), policy="head_chain").remarks
    assert any(plan.gain.closed_by in remark for remark in remarks)


def test_a_plan_keeps_its_gain_in_its_file() -> None:
    plan = planned("sglang", "0.9,0.8,0.7")
    assert Plan.model_validate_json(plan.model_dump_json()).gain == plan.gain


def test_a_comparison_of_drafts_has_the_same_verdicts_as_its_speeds() -> None:
    compared = compare_kinds(
        PAIR[0],
        deployment=Deployment(device="h100-sxm", num_devices=2, engine="sglang", context=128, output_tokens=128),
        drafts={PAIR[1]: "0.9,0.8,0.7"},
        clients=(1, 16),
        num_jobs=1,
    )
    assert all(point.gain is None for point in compared.plain.points)
    kind = next(kind for kind in compared.kinds if kind.name == "eagle3")
    for point in kind.points:
        plain = compared.plain.at(point.clients)
        assert plain is not None
        assert point.gain is not None
        assert point.gain.ratio == pytest.approx(point.user_tokens_per_s / plain.user_tokens_per_s)
        engine_spread = engine_named("sglang").constants().gain_spread
        assert np.log(point.gain.high / point.gain.ratio) / 1.645 == pytest.approx(
            np.hypot(engine_spread, kind.acceptance_spread)
        )


def test_a_gain_on_this_packages_engine_is_as_uncertain_as_its_validations_were() -> None:
    """Gains of policies over plain decoding in the recorded validations, predicted and measured."""
    errors = []
    for path in PROFILES.glob("*/report.json"):
        policies = {policy.policy: policy for policy in Report.load(path).policies}
        plain = policies.pop("autoregressive")
        for policy in policies.values():
            predicted = policy.predicted.tokens_per_s / plain.predicted.tokens_per_s
            errors.append(np.log(predicted / (policy.measured.tokens_per_s / plain.measured.tokens_per_s)))
    assert len(errors) == 47
    assert gain_error(None) == pytest.approx(np.sqrt(np.mean(np.square(errors))), abs=5e-4)
    assert gain_error("vllm") == engine_named("vllm").constants().gain_spread
