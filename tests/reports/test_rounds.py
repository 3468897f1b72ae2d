from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.policies.effects import Role
from swiftspec.reports.rounds import BETWEEN, rounds, time_per_round
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase, Span, Timeline
from tests.builders import constant_profile
from tests.cli.samples import candidate, parallel_timeline, serial_timeline
from tests.reports.html.samples import composed_profile, rich_plan

RANKS = Path(__file__).resolve().parents[2] / "swiftspec/profiles/demo-zen4-2-ranks"
MEASURED = constant_profile(expand_s=0.05, verify_s=0.05)


def test_items_of_a_process_add_up_to_its_mean_round() -> None:
    timeline = parallel_timeline(num_rounds=20)
    items = time_per_round(timeline, candidate("swiftspec", tokens_per_s=30.0), MEASURED)
    assert list(items) == ["target", "draft"]
    # From the first verification to the last commit: 19 rounds of 0.1 s and one of 0.095 s.
    for found in items.values():
        assert sum(item.seconds for item in found) == pytest.approx((19 * 0.1 + 0.095) / 20)


def test_phases_take_what_the_timeline_says() -> None:
    items = time_per_round(parallel_timeline(num_rounds=20), candidate("swiftspec", tokens_per_s=30.0), MEASURED)
    target = {item.name: item.seconds for item in items["target"]}
    assert target == pytest.approx({"verify": 0.09, "send": 0.005, BETWEEN: 0.005 * 19 / 20})
    draft = {item.name: item for item in items["draft"]}
    assert draft["expand"].seconds == pytest.approx(0.09)
    assert draft["expand"].provenance is Provenance.INTERPOLATED
    assert draft["wait"].provenance is None


def test_a_co_located_process_has_both_models_forwards() -> None:
    items = time_per_round(serial_timeline(num_rounds=4), candidate("serial_chain", tokens_per_s=20.0), MEASURED)
    # Round to round starts with a verification: the first expansion is before it, so 3.5 rounds hold 3 expansions.
    assert {item.name: item.seconds for item in items["target"]} == pytest.approx({"expand": 0.15 / 4, "verify": 0.05})


def test_a_composed_forward_is_split_by_operation_in_proportion() -> None:
    items = time_per_round(parallel_timeline(), rich_plan().chosen, composed_profile())["target"]
    forward = {item.name: item for item in items if item.phase is Phase.VERIFY}
    assert sum(item.seconds for item in forward.values()) == pytest.approx(0.09)
    # gate_up is 2.6 of 8.4 ms.
    assert forward["verify: gate_up"].seconds == pytest.approx(0.09 * 2.6 / 8.4)
    assert forward["verify: gate_up"].provenance is Provenance.PUBLISHED
    assert next(iter(forward)) == "verify: gate_up"


def test_a_forward_of_several_ranks_is_split_into_what_they_do() -> None:
    plan, profile = Plan.load(RANKS / "plan.json"), Profile.load(RANKS / "profile.json")
    items = time_per_round(serial_timeline(num_rounds=4), plan.candidates["serial_chain"], profile)["target"]
    assert {item.name for item in items if item.phase is Phase.VERIFY} >= {"verify: shard", "verify: all_reduce"}
    assert sum(item.seconds for item in items if item.phase is Phase.VERIFY) == pytest.approx(0.05)


def test_without_rounds_there_is_nothing() -> None:
    spans = (
        Span(Role.TARGET, Phase.PREFILL, Role.TARGET, 5, 0, 0.0, 1.0),
        Span(Role.TARGET, Phase.COMMIT, Role.TARGET, 0, 1, 1.0, 1.0),
    )
    timeline = Timeline(request="a", start_s=0.0, spans=spans)
    assert rounds(rich_plan(), MEASURED, timeline) == []
