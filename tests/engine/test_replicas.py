"""Several targets and several drafts in one engine: who serves whom, and that nobody's output depends on it."""

import os
import signal
import threading
from functools import partial

import pytest

from swiftspec.engine.process.placement import Placement
from swiftspec.engine.process.protocol import EndReport
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, make_policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.effects import Role
from swiftspec.scheduler.routing import Replicas
from tests.engine.conftest import start_engine, two_cores
from tests.engine.fake_workers import Engine, ended, numbers
from tests.engine.processes import until
from tests.engine.test_load import EIGHT, WORK, together

DISAGGREGATED = SwiftSpec()


def submit(engine: Engine, count: int) -> None:
    """Requests, each after the one before has begun."""
    for number in range(1, count + 1):
        engine.submit((number,), policy=DISAGGREGATED)
        until(partial(has_begun, engine, number))


def has_begun(engine: Engine, number: int) -> bool:
    return any(number in numbers(worker) for worker in engine.site.started)


def peers(engine: Engine, role: Role, group: int) -> dict[int, tuple[int, ...]]:
    """The groups of the other role that each request of a group exchanges messages with."""
    return {command.number: command.peers for command in engine.site.latest(role, group).begun()}


def test_targets_are_taken_in_turn_and_each_request_has_the_draft_with_the_fewest(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True, replicas=Replicas(num_targets=3, num_drafts=2)))
    submit(engine, 4)
    until(lambda: len(peers(engine, Role.DRAFT, 1)) == 2)
    assert [peers(engine, Role.TARGET, group) for group in range(3)] == [{1: (0,), 4: (1,)}, {2: (1,)}, {3: (0,)}]
    assert [peers(engine, Role.DRAFT, group) for group in range(2)] == [{1: (0,), 3: (2,)}, {2: (1,), 4: (0,)}]


def test_one_target_has_several_drafts(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True, replicas=Replicas(num_drafts=2)))
    submit(engine, 3)
    assert peers(engine, Role.TARGET, 0) == {1: (0,), 2: (1,), 3: (0,)}


def test_targets_without_shared_drafts_have_their_own(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True, replicas=Replicas(num_targets=2)))
    submit(engine, 4)
    until(lambda: len(peers(engine, Role.DRAFT, 1)) == 2)
    assert [set(peers(engine, Role.TARGET, group).values()) for group in range(2)] == [{(0,)}, {(1,)}]


def test_every_target_has_limits_of_its_own(engines: list[Engine]) -> None:
    engines.append(engine := Engine(replicas=Replicas(num_targets=2), max_running=1))
    events = [engine.submit((number,))[1] for number in range(4)]
    first, second = (engine.site.latest(Role.TARGET, group) for group in range(2))
    until(lambda: [numbers(first), numbers(second)] == [[1], [2]])
    until(lambda: engine.dispatcher.state().num_waiting == 2)
    state = engine.dispatcher.state()
    assert (state.num_running, state.max_running) == (2, 2)
    second.report(EndReport(2, [], 0))
    ended(events[1])
    until(lambda: numbers(second) == [2, 3])
    assert numbers(first) == [1]


def test_a_draft_that_is_away_has_no_new_requests(engines: list[Engine]) -> None:
    engines.append(engine := Engine(with_draft=True, replicas=Replicas(num_drafts=2)))
    engine.groups[Role.DRAFT][0]._cancelled.add(99)  # one that does not end is a draft that does not respond
    submit(engine, 3)
    assert set(peers(engine, Role.TARGET, 0).values()) == {(1,)}
    assert not any(command.alone for command in engine.target.begun())


def test_further_targets_and_drafts_have_the_devices_after_those_of_the_plan() -> None:
    one = Placement(groups={Role.TARGET: (0, 1), Role.DRAFT: (2,)})
    several = one.replicated(Replicas(num_targets=2, num_drafts=3))
    assert several.groups == {Role.TARGET: (0, 1, 3, 4), Role.DRAFT: (2, 5, 6)}
    leaders = [group[0] for group in several.worker_specs()]
    assert [(leader.name, leader.devices) for leader in leaders] == [
        ("target", (0, 1)),
        ("target group 1", (3, 4)),
        ("draft", (2,)),
        ("draft group 1", (5,)),
        ("draft group 2", (6,)),
    ]
    with pytest.raises(ValueError, match=r"target is placed on devices \[0, 1, 3, 4\]; this machine offers 3"):
        several.check(3)


@pytest.fixture(scope="module")
def alone(pair: tuple[ModelRef, ModelRef]) -> tuple[tuple[int, ...], ...]:
    """What the target says by itself to each prompt."""
    with start_engine(pair, Layout.TARGET_ONLY) as engine:
        return tuple(generation.tokens for generation in together(engine, make_policy("autoregressive")))


@two_cores
@pytest.mark.parametrize("replicas", [Replicas(num_targets=2, num_drafts=1), Replicas(num_drafts=2)], ids=str)
def test_each_request_says_what_it_says_alone(
    pair: tuple[ModelRef, ModelRef], alone: tuple[tuple[int, ...], ...], replicas: Replicas
) -> None:
    with start_engine(pair, Layout.DISAGGREGATED, replicas=replicas, admission=EIGHT, patience_s=5.0) as engine:
        for name in ("swiftspec", "ssd", "minedraft", "amusd"):
            generations = together(engine, make_policy(name))
            assert tuple(generation.tokens for generation in generations) == alone
            assert [generation.losses for generation in generations] == [0] * len(WORK)


@pytest.mark.alone
@two_cores
def test_one_of_two_drafts_that_is_killed_under_load_costs_no_request_its_output(
    pair: tuple[ModelRef, ModelRef], alone: tuple[tuple[int, ...], ...]
) -> None:
    replicas = Replicas(num_targets=2, num_drafts=2)
    with start_engine(
        pair, Layout.DISAGGREGATED, replicas=replicas, admission=EIGHT, patience_s=0.3, max_restarts=9
    ) as engine:
        draft = next(each for each in engine.processes if (each.role, each.group) == (Role.DRAFT, 1))
        killing = threading.Timer(0.02, os.kill, (draft.pid, signal.SIGKILL))
        killing.start()
        generations = together(engine, DISAGGREGATED)
        killing.join()
        assert tuple(generation.tokens for generation in generations) == alone
        until(lambda: engine.num_restarts == 1 and all(each.has_room for each in engine._drafts))
        assert tuple(generation.tokens for generation in together(engine, DISAGGREGATED)) == alone
