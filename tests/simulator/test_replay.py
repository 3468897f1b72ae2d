"""Replayed rounds: of one request what was simulated, of many nearly so, and faster than growing trees."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from swiftspec.policies import POLICIES, Policy, Request, make_policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.chains.serial import SerialTree
from swiftspec.policies.effects import Candidates, Clock, Program, Role
from swiftspec.policies.tree import TokenTree
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import Job, ServingRun
from swiftspec.simulator.serving import Serving
from tests.builders import machine_profile, with_guesses
from tools.iid_trace import synthesise_trace

TRACE = with_guesses(synthesise_trace((0.6, 0.2, 0.1), prompt_lengths=(40, 3, 200), num_tokens=120, seed=1))
REPLAYED = [name for name in POLICIES if make_policy(name).target_groups == 1]


def serving(policy: Policy, *, num_blocks: int | None = None, max_running: int = 8, max_rows: int = 64) -> Serving:
    admission = AdmissionLimits(max_running=max_running, num_blocks=num_blocks, tree_rows=policy.target_rows)
    return Serving(
        machine_profile(num_devices=4).latencies,
        TRACE,
        policy,
        degrees={Role.TARGET: policy.target_groups, Role.DRAFT: 1},
        admission=admission,
        batch=BatchLimits(prefill_rows=64, max_rows=max_rows),
    )


def jobs(count: int, *, gap_s: float = 0.3, least: int = 40) -> list[Job]:
    return [
        Job(arrival_s=number * gap_s, prompt_index=number % 3, output_tokens=least + 17 * number % 50)
        for number in range(count)
    ]


def mean_e2e_s(run: ServingRun) -> float:
    return float(np.mean([request.timeline.e2e_s for request in run.requests]))


def outputs(run: ServingRun) -> list[list[int]]:
    return [request.output for request in run.requests]


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_request_has_the_timeline_that_was_recorded(name: str) -> None:
    job = Job(prompt_index=0, output_tokens=100)
    server = serving(make_policy(name))
    recorded, replayed = server.run([job], seed=2), server.run([job], seed=2, num_recorded=1)
    assert (recorded.num_replayed, replayed.num_replayed) == (0, 1)
    assert replayed.requests[0].timeline.spans == recorded.requests[0].timeline.spans


@pytest.mark.parametrize("name", REPLAYED)
def test_replayed_outputs_are_the_texts_also_of_requests_that_give_way_and_of_long_ones(name: str) -> None:
    policy = make_policy(name)
    server = serving(policy, num_blocks=24 + policy.target_rows // 4)
    asked = [Job(arrival_s=number * 0.01, prompt_index=number % 2, output_tokens=60 + number) for number in range(12)]
    asked += [Job(arrival_s=5.0, prompt_index=1, prompt_tokens=30, output_tokens=300)]
    run = server.run(asked, num_recorded=3)
    assert sum(request.num_preemptions for request in run.requests) > 0
    assert run.num_replayed == 13 + sum(request.num_preemptions for request in run.requests)
    assert all(request.output == request.text.output for request in run.requests)


@pytest.mark.parametrize(
    ("name", "gap_s"),
    # Requests that are mostly alone repeat what the first test holds for each policy.
    [("serial_tree", 1.5), *((name, 0.25) for name in ("serial_tree", "swiftspec", "amusd", "pearl"))],
)
def test_means_are_near_those_of_the_simulation_in_full(name: str, gap_s: float) -> None:
    server, asked = serving(make_policy(name)), jobs(40, gap_s=gap_s, least=60)
    full, replayed = server.run(asked), server.run(asked, num_recorded=14)
    assert mean_e2e_s(replayed) == pytest.approx(mean_e2e_s(full), rel=0.06)
    rounds = [sum(len(request.timeline.verifications_s) for request in run.requests) for run in (full, replayed)]
    assert rounds[1] == pytest.approx(rounds[0], rel=0.05)


def test_rows_that_were_not_granted_are_verified_later() -> None:
    """Steps of 10 rows for up to 4 trees of 8: a tree's later tokens are accepted a round later, not lost."""
    policy = SerialTree(verify_rows=8)
    server, asked = serving(policy, max_running=4, max_rows=10), jobs(40, gap_s=0.1)
    full, replayed = server.run(asked), server.run(asked, num_recorded=15)
    assert outputs(replayed) == outputs(full)
    assert mean_e2e_s(replayed) == pytest.approx(mean_e2e_s(full), rel=0.1)


def test_a_seed_gives_one_replay() -> None:
    server = serving(SwiftSpec(verify_rows=8))
    first, again, other = (server.run(jobs(10), seed=seed, num_recorded=4) for seed in (1, 1, 2))
    assert first.steps == again.steps
    assert first.steps != other.steps


def test_littles_identity_holds_in_a_replay() -> None:
    run = serving(SwiftSpec(verify_rows=8)).run(jobs(30, gap_s=0.1), num_recorded=10)
    times_s = sorted({time_s for each in run.requests for time_s in (each.arrival_s, each.ended_s or 0.0)})
    area = 0.0
    for start_s, end_s in pairwise(times_s):
        present = sum(each.arrival_s <= start_s < (each.ended_s or 0.0) for each in run.requests)
        area += present * (end_s - start_s)
    assert area == pytest.approx(sum((each.ended_s or 0.0) - each.arrival_s for each in run.requests), rel=1e-9)


def test_a_replay_grows_the_trees_of_the_recorded_requests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing them is most of a simulation's work."""
    server, asked = serving(SwiftSpec(verify_rows=16, expand_rows=12, num_candidates=15)), jobs(20, least=80)
    grow, grown = TokenTree.grow, Counter[int]()

    def run(num_recorded: int) -> int:
        def counted(tree: TokenTree, candidates: Sequence[Candidates]) -> None:
            grown[num_recorded] += 1
            grow(tree, candidates)

        monkeypatch.setattr(TokenTree, "grow", counted)
        server.run(asked, num_recorded=num_recorded)
        return grown[num_recorded]

    assert run(0) > 15 * run(1) > 0


class Punctual(SerialTree):
    """A serial tree that looks at the clock."""

    name: ClassVar[str] = "punctual"

    def programs(self, request: Request) -> dict[Role, Program]:
        return {role: self._timed(program) for role, program in super().programs(request).items()}

    def _timed(self, program: Program) -> Program:
        yield Clock()
        yield from program


@pytest.mark.parametrize("policy", [Punctual(), make_policy("dsi")])
def test_what_cannot_be_recorded_is_simulated_in_full(policy: Policy) -> None:
    server = serving(policy)
    full, asked_to_replay = server.run(jobs(4)), server.run(jobs(4), num_recorded=4)
    assert asked_to_replay.num_replayed == 0
    assert asked_to_replay.steps == full.steps


def test_policies_of_others_are_replayed() -> None:
    class Own(SerialTree):
        name: ClassVar[str] = "own"

        def programs(self, request: Request) -> dict[Role, Program]:
            programs: Mapping[Role, Program] = super().programs(request)
            return dict(programs)

    assert serving(Own()).run(jobs(4), num_recorded=4).num_replayed == 4
