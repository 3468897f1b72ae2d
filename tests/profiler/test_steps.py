import os

import numpy as np
import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.devices.local import TREE_SLOTS
from swiftspec.engine.model.gpu.kv_cache import CAPTURE_SIZES
from swiftspec.files.document import ModelRef
from swiftspec.policies import POLICIES, DraftKind, Layout
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.base import shape_of
from swiftspec.policies.effects import Role
from swiftspec.profiler import grids, passes
from swiftspec.profiler.benches import benches_of
from swiftspec.profiler.effort import Effort
from swiftspec.profiler.host_costs import arrival_point, host_points
from swiftspec.profiler.steps import measure_profile, step_points
from swiftspec.timing.sharing import SharingTable
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase, Span, Timeline
from tests.engine.pairs import references, write_pair

GROUPS = {Role.TARGET: (0,), Role.DRAFT: (1,)}


def timeline(*spans: Span, request: str = "64") -> Timeline:
    return Timeline(request=request, start_s=0.0, spans=spans)


def test_steps_are_grouped_by_phase_rows_and_context() -> None:
    spans = [Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 8, 0, 0.1 * i, 0.1 * i + 0.02) for i in range(9)]
    spans.append(Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 4, 0, 0.0, 0.005))
    groups = {Role.TARGET: (0, 1), Role.DRAFT: (2,)}
    verify, expand = step_points([timeline(*spans)], groups, Layout.DISAGGREGATED, ranks={})
    assert (verify.role, verify.rows, verify.context, verify.degree, verify.peer_busy) == (Role.TARGET, 8, 64, 2, True)
    assert verify.num_samples == 9
    assert verify.quantiles_s[0] == pytest.approx(0.02)
    assert (expand.role, expand.degree) == (Role.DRAFT, 1)


def test_a_colocated_drafts_steps_have_the_targets_degree() -> None:
    span = Span(Role.TARGET, Phase.EXPAND, Role.DRAFT, 4, 0, 0.0, 0.005)
    (point,) = step_points([timeline(span)], {Role.TARGET: (0, 1)}, Layout.COLOCATED, ranks={})
    assert (point.role, point.degree, point.peer_busy) == (Role.DRAFT, 2, False)


def test_a_draft_that_waited_is_cold() -> None:
    spans = []
    for i in range(8):
        t = float(i)
        spans += [
            Span(Role.DRAFT, Phase.WAIT, Role.DRAFT, 0, 0, t, t + 0.5),
            Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 4, 0, t + 0.5, t + 0.52),
            Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 4, 0, t + 0.5205, t + 0.5305),
        ]
    points = {point.cold: point for point in step_points([timeline(*spans)], GROUPS, Layout.DISAGGREGATED, ranks={})}
    # The first one of all is not: nothing is known of what came before.
    assert {cold: point.num_samples for cold, point in points.items()} == {True: 7, False: 9}
    assert points[True].latency.mean_s == pytest.approx(0.02)
    assert points[False].latency.median_s == pytest.approx(0.01)


def test_a_target_that_waited_is_warm_and_after_a_draft_it_is_cold() -> None:
    spans = []
    for i in range(8):
        t = float(i)
        spans += [
            Span(Role.TARGET, Phase.EXPAND, Role.DRAFT, 4, 0, t, t + 0.1),
            Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 8, 0, t + 0.1, t + 0.13),
            Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 8, 0, t + 0.5, t + 0.52),
        ]
    steps = step_points([timeline(*spans)], {Role.TARGET: (0,)}, Layout.COLOCATED, ranks={})
    points = {point.cold: point for point in steps if point.phase is Phase.VERIFY}
    assert {cold: point.latency.median_s for cold, point in points.items()} == pytest.approx({True: 0.03, False: 0.02})


def test_a_message_costs_what_verifications_with_more_of_them_take_longer() -> None:
    spans = []
    for i in range(16):
        many = i % 2 == 1
        spans.append(Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 6, 0, i + 0.0, i + (0.24 if many else 0.2)))
        spans += [Span(Role.DRAFT, Phase.SEND, Role.DRAFT, 0, 0, i + 0.1, i + 0.1 + 0.01 * n) for n in range(4 * many)]
    arrival = arrival_point([timeline(*spans)])
    assert arrival is not None
    assert arrival.num_samples == 8
    assert arrival.latency.mean_s == pytest.approx(0.04 / 4)
    assert arrival_point([timeline(*spans[:5])]) is None  # too few to say


def test_host_time_is_the_gap_and_the_span_unless_it_is_a_forward() -> None:
    spans = []
    for i in range(10):
        t = float(i)
        spans += [
            Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 8, 0, t + 0.1, t + 0.5),
            Span(Role.TARGET, Phase.COMMIT, Role.TARGET, 0, 3, t + 0.6, t + 0.8),
        ]
    points = {point.phase: point for point in host_points([("own", timeline(*spans))]) if point.policy == "own"}
    assert points[Phase.COMMIT].quantiles_s == pytest.approx([0.3] * 20)  # 0.1 thinking, 0.2 committing
    assert points[Phase.VERIFY].quantiles_s == pytest.approx([0.3] * 20)  # 0.8 to 1.1
    assert points[Phase.VERIFY].rows == 8


def test_a_hop_is_counted_only_where_the_receiver_was_waiting() -> None:
    spans = []
    for i in range(20):
        waiting = i % 2 == 0
        start_s = i + (0.2 if waiting else 0.6)
        spans += [
            Span(Role.DRAFT, Phase.SEND, Role.DRAFT, 0, 0, i + 0.4, i + 0.5),
            Span(Role.TARGET, Phase.WAIT, Role.TARGET, 0, 0, start_s, i + 0.61),
        ]
    hop, _ = [point for point in host_points([("own", timeline(*spans))]) if point.phase is Phase.WAIT]
    assert hop.num_samples == 10
    assert hop.quantiles_s == pytest.approx([0.11] * 20)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    target, draft = references(write_pair(tmp_path_factory.mktemp("pair"), architecture="llama"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.profiler.effort._LADDER", (Effort(passes=1, repeats=3, host_tokens=24),))
        patch.setattr("swiftspec.profiler.shared_steps._REPEATS", 3)
        patch.setattr("swiftspec.profiler.passes.PAUSE_REPEATS", 1)
        return measure_profile(
            target=target,
            draft=draft,
            device="cpu",
            num_devices=min(2, len(os.sched_getaffinity(0))),
            max_sequences=4,
            progress=lambda *_: None,
        )


def test_a_real_profile_knows_what_steps_of_several_sequences_cost(measured: Profile) -> None:
    assert measured.sharing is not None
    tables = {step.table for step in measured.steps if not step.cold and step.phase in (Phase.VERIFY, Phase.EXPAND)}
    wanted = {SharingTable(table.role, table.degree, table.ranks, table.peer_busy) for table in tables}
    # A draft beside its target measures for as long as the target does, which is shorter than usual here.
    sure = {table for table in wanted if table.role is Role.TARGET or not table.peer_busy}
    assert sure <= {cost.table for cost in measured.sharing.costs} <= wanted
    for table in sure:
        points = [point for point in measured.sharing.points if point.table == table]
        assert {(point.sequences, point.rows) for point in points} >= {
            *((4, rows) for rows in (4, 16, 32)),
            *((2, rows) for rows in (2, 8, 16)),
            *((1, rows) for rows in (2, 4, 8, 16, 32)),
        }
        assert {point.context for point in points} == {16, 64}


def test_a_real_profile_answers_every_question_of_a_plan(measured: Profile) -> None:
    for degree in range(1, measured.num_devices + 1):
        for phase, role in ((Phase.VERIFY, Role.TARGET), (Phase.EXPAND, Role.DRAFT), (Phase.PREFILL, Role.DRAFT)):
            latency = measured.step(StepKey(role, phase, degree, rows=8, context=100))
            assert 0 < latency.median_s < 1
    for phase in (Phase.COMPACT, Phase.COMMIT, Phase.EXPAND, Phase.VERIFY):
        host = measured.latencies.host_latency(phase)
        assert host is not None
        assert host.median_s > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a hop needs two processes on two cores")
def test_a_real_profile_has_the_channels_hop_and_steps_beside_a_busy_peer(measured: Profile) -> None:
    assert measured.latencies.host_latency(Phase.WAIT) is not None
    assert {step.peer_busy for step in measured.steps} == {False, True}


def test_an_unknown_device_is_named(tmp_path: object) -> None:
    reference = ModelRef(model="nowhere", dtype="float32")
    with pytest.raises(ValueError, match="device is 'tpu'"):
        measure_profile(target=reference, draft=reference, device="tpu", num_devices=1, progress=lambda *_: None)


def test_row_grids_cover_what_the_policies_ask_for() -> None:
    from swiftspec.policies import POLICIES

    shapes = [shape for policy in POLICIES.values() for shape in policy.search_space()]
    assert max(shape.target_rows for shape in shapes) <= max(grids.TARGET_ROWS)


def test_gpus_are_measured_in_groups_and_splits_of_all_sizes() -> None:
    assert [str(bench) for bench in benches_of("cuda", 1)] == ["co-located 1"]
    benches = list(benches_of("cuda", 3))
    assert [str(bench) for bench in benches] == [
        "co-located 1",
        "co-located 2",
        "co-located 3",
        "disaggregated 1+2",
        "disaggregated 2+1",
    ]
    assert {bench.device for bench in benches} == {"cuda"}


def test_a_gpus_sweeps_are_of_the_rows_that_its_graphs_are_made_for() -> None:
    for layout in (Layout.COLOCATED, Layout.DISAGGREGATED):
        for sweep in passes.new_sweeps(layout, repeats=1, device="cuda"):
            assert max(sweep.target_rows, sweep.draft_rows) <= TREE_SLOTS["cuda"]
    assert {*passes.GPU_TARGET_ROWS, *passes.GPU_DRAFT_ROWS, *passes.GPU_HALVES_ROWS} == set(CAPTURE_SIZES)


def test_host_costs_are_each_policys_own_and_those_of_all_together() -> None:
    def rounds(gap_s: float) -> Timeline:
        gaps = [Span(Role.TARGET, Phase.VERIFY, Role.TARGET, 4, 0, i + gap_s, i + 1.0) for i in range(9)]
        return timeline(*gaps)

    points = {
        point.policy: point
        for point in host_points([("quick", rounds(0.1)), ("slow", rounds(0.3)), ("slow", rounds(0.3))])
    }
    assert np.mean(points["quick"].quantiles_s) == pytest.approx(0.1)
    assert np.mean(points["slow"].quantiles_s) == pytest.approx(0.3)
    assert points["slow"].num_samples == 16
    assert points[""].num_samples == 24
    assert np.median(points[""].quantiles_s) == pytest.approx(0.3)


def test_every_built_in_policy_has_host_costs_of_its_own() -> None:
    """But for one that needs several groups of devices."""
    named = {shape.name for layout in Layout for kind in DraftKind for shape in grids.host_shapes(layout, kind)}
    assert named == set(POLICIES) - {Dsi.name}


def test_host_costs_of_a_gpu_are_those_of_policies_whose_trees_it_holds() -> None:
    for bench in benches_of("cuda", 2):
        shapes = bench.host_shapes(DraftKind.PARALLEL)
        assert shapes
        assert max(max(shape.target_rows, shape.draft_rows) for shape in shapes) <= TREE_SLOTS["cuda"]


def test_host_costs_are_those_of_trees_as_plans_run_them() -> None:
    """Ordered at a fitted temperature, with as many candidates as the search keeps: both cost the host time."""
    every = [shape for layout in Layout for shape in grids.host_shapes(layout)]
    shapes = [shape for shape in every if hasattr(shape, "draft_temperature")]
    assert len(shapes) >= 6
    for shape in shapes:
        assert shape_of(shape)["draft_temperature"] != 1.0, shape
        if isinstance(shape, SwiftSpec):
            assert shape.num_candidates >= shape.verify_rows - 1
