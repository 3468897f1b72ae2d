"""Steps of several sequences: the measuring programs run by the simulator on a machine of known costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.effects import Program, Role
from swiftspec.profiler import shared_steps
from swiftspec.profiler.benches import Bench
from swiftspec.profiler.shared_steps import (
    MOST_ROWS,
    ColocatedSharing,
    DisaggregatedSharing,
    rows_each,
    stages,
)
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import Job
from swiftspec.simulator.serving import Serving
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import Sharing, SharingCost, fit_costs
from swiftspec.timing.timeline import Phase, Span, Timeline
from tests.builders import Scripted, machine_profile
from tools.iid_trace import synthesise_trace


def test_stages_halve_and_the_last_one_has_the_rows_of_all_others() -> None:
    assert [stages(count) for count in (1, 2, 3, 8, 9)] == [[1], [2, 1], [2, 1], [8, 4, 2, 1], [8, 4, 2, 1]]
    assert rows_each(8, 8) == [8, 4, 1]
    assert rows_each(32, 32) == [1]
    assert rows_each(1, 8) == [64, 32, 16, 8, 4, 2]
    for num_requests in (2, 8, 64):
        together = {
            sharing * rows for sharing in stages(num_requests)[:-1] for rows in rows_each(sharing, num_requests)
        }
        assert together == set(rows_each(1, num_requests))
        assert max(together) <= MOST_ROWS


def span(start_s: float, *, rows: int = 4, phase: Phase = Phase.VERIFY) -> Span:
    return Span(Role.TARGET, phase, Role.TARGET, rows, 0, start_s, start_s + 0.5)


def test_only_steps_whose_requests_have_equally_many_rows_count() -> None:
    first = [span(0.0), span(1.0), span(2.0), span(3.0, rows=1), span(4.0)]
    second = [span(0.0), span(1.0), span(2.0, rows=8), span(3.0, rows=100, phase=Phase.PREFILL)]
    timelines = [Timeline(request="16", start_s=0.0, spans=tuple(spans)) for spans in (first, second)]
    found = [(count, each.start_s, each.rows) for count, each in shared_steps.shared_steps(timelines, since_s=0.5)]
    assert found == [(2, 1.0, 4), (1, 4.0, 4)]


@pytest.mark.parametrize("wrong", [0, MOST_ROWS + 1])
def test_more_sequences_than_a_step_has_rows_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"max_sequences is {wrong}; expected 1 to {MOST_ROWS}, the rows of a step"):
        shared_steps.check_max_sequences(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAfterAnother(Scripted):
    """A sweep's requests: each call makes the programs of the next one."""

    policies: Iterator[Policy]

    def programs(self, request: Request) -> Mapping[Role, Program]:
        return next(self.policies).programs(request)


class OneAfterAnotherColocated(OneAfterAnother):
    layout = Layout.COLOCATED


SEQUENCE_S = {Role.TARGET: 3e-4, Role.DRAFT: 1e-5}
SLOT_S = {Role.TARGET: 2e-6, Role.DRAFT: 1e-7}
CONTEXTS = (16, 240)


def machine(peer_busy: bool) -> Profile:
    """Steps of known sharing costs."""
    costs = tuple(
        SharingCost(
            role=role,
            degree=1,
            peer_busy=peer_busy,
            sequence_s=SEQUENCE_S[role],
            slot_s=SLOT_S[role],
            provenance=Provenance.MEASURED,
        )
        for role in Role
    )
    return machine_profile().model_copy(update={"sharing": Sharing(costs=costs, host_share=0.4)})


@pytest.mark.parametrize("layout", [Layout.COLOCATED, Layout.DISAGGREGATED])
def test_the_programs_share_the_steps_that_a_fit_needs(layout: Layout) -> None:
    """Run by the simulator on a machine of known sharing costs, which the fit finds again."""
    is_apart = layout is Layout.DISAGGREGATED
    kind = DisaggregatedSharing if is_apart else ColocatedSharing
    sequential = OneAfterAnother if is_apart else OneAfterAnotherColocated
    groups: dict[Role, tuple[int, ...]] = {Role.TARGET: (0,)}
    if is_apart:
        groups[Role.DRAFT] = (1,)
    samples = shared_steps.Samples(Bench(device="cpu", layout=layout, groups=groups))
    for context in CONTEXTS:
        sweep = [kind(index=index, num_requests=4, begin_s=2.0, repeats=24) for index in range(4)]
        serving = Serving(
            machine(is_apart).latencies,
            synthesise_trace((0.5, 0.2), prompt_lengths=(context,), num_tokens=4, seed=0),
            sequential(scripts={}, policies=iter(sweep)),
            degrees=dict.fromkeys(Role, 1),
            admission=AdmissionLimits(max_running=4),
            batch=BatchLimits(),
        )
        run = serving.run([Job(prompt_index=0, output_tokens=1)] * 4)
        timelines = [request.timeline for request in run.requests]
        assert max(span.end_s for each in timelines for span in each.phase(Phase.PREFILL)) < 2.0
        samples.add(context, shared_steps.shared_steps(timelines, since_s=2.0))
    assert np.median(list(samples.host_shares())) == pytest.approx(0.4, rel=0.1)
    points = list(samples.points())
    wanted = {(sharing, sharing * rows) for sharing in (4, 2, 1) for rows in rows_each(sharing, 4)}
    for role in Role:
        assert {(each.sequences, each.rows) for each in points if each.role is role} >= wanted
        assert min(each.num_samples for each in points if (each.sequences, each.rows) in wanted) >= 6
    for cost in fit_costs(points):
        assert cost.peer_busy is is_apart
        each_s = SEQUENCE_S[cost.role] + SLOT_S[cost.role] * 240
        assert cost.seconds(240) == pytest.approx(each_s, rel=0.25), cost
