"""Numbers of replicas found from simulations whose outcome is known, and the order in which they are simulated."""

import gc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from swiftspec.artifacts.distributions import Distribution, Process
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.plan import Candidate, Prediction
from swiftspec.artifacts.under_load import LoadPrediction
from swiftspec.planner.fleet.choice import pools_of, saves
from swiftspec.planner.fleet.load_simulations import LoadSimulations, Simulation, Task
from swiftspec.planner.fleet.replica import Kind
from swiftspec.planner.fleet.sizing import Bracket, Sizing
from swiftspec.planner.search.backends import Workers, uncollected
from swiftspec.planner.search.evaluation import Evaluator
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.simulations import Simulations
from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import shape_of
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from swiftspec.workload import Arrivals, Lengths, make_workload
from tests.builders import chain_trace, machine_profile
from tests.planner.fleet.test_parts import point

RATE = 40.0
LOADS = (0.5, 0.75, 1.1, 1.6)  # requests/s per device
PROFILE, TRACE = machine_profile(noise=0.0), chain_trace(num_tokens=8)
METRICS = measure(simulate(Autoregressive(), degrees={Role.TARGET: 1}, profile=PROFILE, trace=TRACE))
LENGTHS = Lengths(distribution=Distribution.FIXED, tokens=32)
WORKLOAD = make_workload(
    Arrivals(process=Process.POISSON, rate=RATE), num_requests=64, prompt_tokens=LENGTHS, output_tokens=LENGTHS
)
PLAIN, CHAIN, TREES = Autoregressive(), SerialChain(), SwiftSpec(verify_rows=8)


def kind(policy: Policy, *sizes: int, alone: float = 100.0) -> Kind:
    """A kind on groups of these sizes. alone: tokens/s of a single request."""
    option = Option.placed(policy, sizes)
    metrics = METRICS.model_copy(update={"figures": METRICS.figures.model_copy(update={"tokens_per_s": alone})})
    prediction = Prediction(metrics=metrics, tokens_per_s_low=alone, tokens_per_s_high=alone, provenance={})
    groups = dict(option.groups)
    candidate = Candidate(policy=policy.name, shape=shape_of(policy), groups=groups, prediction=prediction)
    return Kind(option=option, candidate=candidate)


@dataclass(slots=True, kw_only=True)
class Known(LoadSimulations):
    """Simulations of candidates of which the highest load is known, in requests per second of a replica."""

    capacity: Mapping[str, float]
    seen: list[Task] = field(default_factory=list)
    workers: Workers[Task, Simulation] = field(init=False)

    def __post_init__(self) -> None:
        self.workers = Workers(self._known, 1)

    def _known(self, task: Task) -> Simulation:
        self.seen.append(task)
        most = self.capacity[task.candidate.describe()]
        attained = min(1.0, 0.95 - 0.25 * math.log(task.rate / most))
        found = point(task.rate, 100.0, keeps=task.rate <= most, attained=attained)
        return Simulation(found.model_copy(update={"keeps_up": True}), LoadPrediction.model_construct())


def known(*capacity: tuple[Kind, float]) -> tuple[Known, Sizing]:
    simulated = Known(
        simulations=Simulations(
            evaluator=Evaluator(PROFILE, TRACE, num_jobs=1), trace=TRACE, goal=Goal(), seed=0, report=lambda *_: None
        ),
        capacity={kind.candidate.describe(): rate for kind, rate in capacity},
    )
    sizing = Sizing(simulated, rate=RATE, output_tokens=32, batch=lambda *_: 4.0, room=lambda _: None)
    return simulated, sizing


def sized(*capacity: tuple[Kind, float]) -> tuple[Known, list[Bracket]]:
    """Kinds after sweep and bisection."""
    simulated, sizing = known(*capacity)
    found = sizing.sweep([kind for kind, _ in capacity], LOADS, tokens=500, what="")
    sizing.settle(found, tokens=1000, may_win=lambda one: one.kind.may_win)
    return simulated, found


def test_the_best_of_every_layout_has_the_fewest_replicas_that_are_enough() -> None:
    _, found = sized((kind(PLAIN, 4), 2.6), (kind(CHAIN, 4, alone=150), 3.1), (kind(TREES, 4, 1, alone=200), 4.05))
    assert [(one.high, one.is_fewest) for one in found] == [(16, True), (13, True), (10, True)]


def test_others_are_tried_once_where_they_would_win_and_may_then_win() -> None:
    best, wide = kind(TREES, 4, 1, alone=200), kind(TREES, 7, 1, alone=250)
    _, (of_best, of_wide) = sized((best, 4.05), (wide, 5.2))
    assert (of_best.high, of_best.is_fewest) == (10, True)
    assert list(of_wide.exact) == [6]  # on 48 devices instead of 50
    _, (of_best, of_wide) = sized((best, 4.05), (wide, 7.4))
    assert (of_wide.high, of_wide.is_fewest) == (6, True)
    assert of_wide.devices < of_best.devices


def test_a_sweep_ends_at_the_first_load_that_misses_the_limits() -> None:
    plain = kind(PLAIN, 4)
    simulated, sizing = known((plain, 3.1))
    (one,) = sizing.sweep([plain], LOADS, tokens=500, what="")
    assert list(one.points) == [0.5, 0.75, 1.1]
    assert [point.keeps for point in one.all_points] == [True, True, False]
    assert simulated.num_simulations == 3


def test_a_kind_that_barely_missed_the_lowest_load_gets_its_number_if_nobody_did_better() -> None:
    plain = kind(PLAIN, 4)
    simulated, sizing = known((plain, 1.9))
    (one,) = sizing.sweep([plain], LOADS, tokens=500, what="")
    assert (one.high, one.retry) == (None, 20)
    simulated.capacity = {plain.candidate.describe(): 2.0}  # as more requests tell
    sizing.settle([one], tokens=1000, may_win=lambda _: True)
    assert (one.high, one.is_fewest) == (20, True)
    assert [point.keeps for point in one.all_points] == [True, False]


def test_a_longer_simulation_refutes_shorter_ones_of_lower_loads() -> None:
    one = Bracket(kind=kind(PLAIN, 4), points={0.5: point(2.0, 100.0, keeps=False), 0.75: point(3.0, 90.0)})
    one.note(10, point(4.0, 80.0))
    assert [each.rate for each in one.all_points] == [3.0, 4.0]


def test_a_number_that_cannot_be_placed_rules_nobody_out() -> None:
    plain, wide = kind(PLAIN, 4), kind(TREES, 7, 1)
    _, sizing = known((plain, 4.05), (wide, 5.2))
    found = sizing.sweep([plain, wide], LOADS, tokens=500, what="")
    sizing.settle(found, tokens=1000, may_win=lambda one: one.kind is wide)
    assert [one.is_fewest for one in found] == [True, True]


def test_pools_have_at_least_as_many_targets_as_replicas_with_their_own_drafts() -> None:
    own = Bracket(kind=kind(TREES, 4, 1), low=9, high=10)
    own.exact = {9: point(40 / 9, 90.0, keeps=False), 10: point(4.0, 90.0)}
    two, four = pools_of(own, most_devices=64)
    assert [(pool.kind.num_targets, pool.next_count) for pool in (two, four)] == [(2, 5), (4, 3)]
    assert [saves(pool, own) for pool in (two, four)] == [True, False]  # 45 devices, and 51
    two.note(5, point(8.0, 90.0))
    assert two.is_fewest
    four.note(3, point(40 / 3, 90.0, keeps=False))
    assert not saves(four, own)


def test_the_longest_simulations_start_first_and_results_keep_their_order() -> None:
    plain, trees = kind(PLAIN, 4), kind(TREES, 4, 1)
    simulated, sizing = known((plain, 3.0), (trees, 4.0))
    tasks = [sizing.task(plain, 2.0, 500), sizing.task(trees, 2.0, 500), sizing.task(trees, 3.0, 4000)]
    found = simulated.run(tasks, "")
    assert simulated.seen == [tasks[2], tasks[1], tasks[0]]
    assert [simulation.point.rate for simulation in found] == [2.0, 2.0, 3.0]


def test_nothing_is_collected_within_a_simulation_and_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
