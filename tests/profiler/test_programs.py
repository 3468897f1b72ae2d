"""The measuring programs, run by the simulator's driver: they cause exactly what is to be measured."""

from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.profiler.programs import AlternatingSweep, Interruptions, Resumptions, TargetSweep
from swiftspec.profiler.steps import step_points
from swiftspec.simulator.driver import simulate
from swiftspec.timing.timeline import Phase, Timeline
from tests.builders import constant_profile, with_guesses
from tools.iid_trace import synthesise_trace

EXPAND_S, VERIFY_S = 0.002, 0.016
GROUPS = {Role.TARGET: (0,), Role.DRAFT: (1,)}


def simulated(sweep: Policy) -> Timeline:
    (timeline,) = simulate(
        sweep,
        degrees=dict.fromkeys(Role, 1),
        profile=constant_profile(expand_s=EXPAND_S, verify_s=VERIFY_S),
        trace=with_guesses(
            synthesise_trace([0.6, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05], prompt_lengths=[64], num_tokens=8, seed=0)
        ),
    )
    return Timeline(request="64", start_s=0.0, spans=timeline.spans)


def test_resumptions_leave_the_draft_cold_at_every_row_count() -> None:
    sweep = Resumptions(target_rows_grid=(1,), draft_rows_grid=(1, 4, 8), halves_rows_grid=(), repeats=6)
    points = [
        point
        for point in step_points([simulated(sweep)], GROUPS, Layout.DISAGGREGATED, ranks={})
        if point.phase is Phase.EXPAND
    ]
    assert [(point.rows, point.cold, point.num_samples) for point in points] == [(rows, True, 6) for rows in (1, 4, 8)]


def test_verifications_are_measured_after_the_draft_and_after_each_other() -> None:
    points = [
        point
        for sweep in (AlternatingSweep, TargetSweep)
        for point in step_points(
            [simulated(sweep(target_rows_grid=(1, 4, 8), draft_rows_grid=(1, 8), halves_rows_grid=(), repeats=6))],
            {Role.TARGET: (0,)},
            Layout.COLOCATED,
            ranks={},
        )
        if point.phase is Phase.VERIFY
    ]
    found = {(point.rows, point.cold): point.num_samples for point in points}
    # Plain decoding verifies one row, hundreds of times, and has no draft.
    assert found.pop((1, False)) > 6
    assert found == {(rows, cold): 6 for rows in (4, 8) for cold in (True, False)}


def test_interruptions_come_beside_every_other_verification() -> None:
    sweep = Interruptions(target_rows_grid=(1,), draft_rows_grid=(1,), halves_rows_grid=(), repeats=4)
    timeline = simulated(sweep)
    sends = [span.end_s for span in timeline.of(Role.DRAFT) if span.phase is Phase.SEND]
    counts = [sum(span.start_s <= sent_s < span.end_s for sent_s in sends) for span in timeline.phase(Phase.VERIFY)]
    assert len(counts) == 8
    assert max(counts[::2]) <= 1
    assert min(counts[1::2]) >= VERIFY_S / EXPAND_S - 2
