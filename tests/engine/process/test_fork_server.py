"""An engine whose fork server dies or freezes, alone or with another process. The output is the target's own."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftspec.engine.launcher import Launcher
from swiftspec.errors import EngineError
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.effects import Role
from tests.engine.conftest import start_engine, two_cores
from tests.engine.processes import gone_within, workers
from tests.engine.victims import PATIENCE_S, generate, longest_gap_s, once, pid_of, wait_until_ready

pytestmark = [pytest.mark.alone, two_cores]


def fork_server_of(engine: Launcher) -> int:
    return parent(pid_of(engine, Role.DRAFT))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def engine_of_its_own(slow_pair: tuple[ModelRef, ModelRef], monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """With a fork server of its own, too."""
    monkeypatch.setattr("swiftspec.engine.process.fork_server_client._shared", [])
    with start_engine(slow_pair, Layout.DISAGGREGATED, patience_s=PATIENCE_S, max_restarts=100) as engine:
        yield engine


def test_a_fork_server_that_dies_with_the_draft_costs_a_restart_of_both(
    engine_of_its_own: Launcher, undisturbed: tuple[int, ...]
) -> None:
    engine = engine_of_its_own
    both = fork_server_of(engine), pid_of(engine, Role.DRAFT)

    def kill() -> None:
        for pid in both:
            os.kill(pid, signal.SIGKILL)

    generation, gap_s = longest_gap_s(engine, once(20, kill))
    assert generation.tokens == undisturbed
    assert gap_s < 2.0
    wait_until_ready(engine)
    assert fork_server_of(engine) not in both
    after = generate(engine, SwiftSpec())
    assert (after.tokens, after.losses) == (undisturbed, 0)
    assert after.timeline.of(Role.DRAFT)


def test_a_frozen_fork_server_is_not_waited_for_and_is_replaced(
    engine_of_its_own: Launcher, undisturbed: tuple[int, ...]
) -> None:
    engine = engine_of_its_own
    frozen, draft = fork_server_of(engine), pid_of(engine, Role.DRAFT)

    def freeze_and_kill() -> None:
        os.kill(frozen, signal.SIGSTOP)
        os.kill(draft, signal.SIGKILL)

    generation, gap_s = longest_gap_s(engine, once(20, freeze_and_kill))
    assert generation.tokens == undisturbed
    assert gap_s < 2.0
    wait_until_ready(engine)
    assert fork_server_of(engine) != frozen
    assert gone_within([frozen], 5.0)
    assert generate(engine, SwiftSpec()).tokens == undisturbed


def test_ctrl_c_works_while_the_fork_server_is_frozen(engine_of_its_own: Launcher) -> None:
    engine = engine_of_its_own
    frozen, draft = fork_server_of(engine), pid_of(engine, Role.DRAFT)
    struck_s = []

    def strike() -> None:
        os.kill(frozen, signal.SIGSTOP)
        os.kill(draft, signal.SIGKILL)
        threading.Timer(0.2, interrupt).start()

    def interrupt() -> None:
        struck_s.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    generation = generate(engine, SwiftSpec(), once(1, strike))
    assert time.monotonic() - struck_s[0] < 2.0
    assert generation.interrupted


def strike_at_start_up(role: int, slow_pair: tuple[ModelRef, ModelRef], number: signal.Signals) -> Launcher:
    """An engine of which a process is struck while it loads: 0 the target, 1 the draft."""
    struck: list[int] = []
    before = set(workers(os.getpid()))  # of other engines

    def strike() -> None:
        deadline_s = time.monotonic() + 60.0
        while not struck and time.monotonic() < deadline_s:
            new = sorted(set(workers(os.getpid())) - before)
            struck.extend(new[role : role + 1])
        os.kill(struck[0], number)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        return start_engine(slow_pair, Layout.DISAGGREGATED, patience_s=PATIENCE_S)
    finally:
        thread.join()


def test_a_draft_killed_while_it_loads_is_started_again(
    slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]
) -> None:
    with strike_at_start_up(1, slow_pair, signal.SIGKILL) as engine:
        assert engine.num_restarts == 1
        assert generate(engine, SwiftSpec()).tokens == undisturbed


def test_a_target_killed_while_it_loads_is_one_sentence(slow_pair: tuple[ModelRef, ModelRef]) -> None:
    with pytest.raises(EngineError, match="the target process ended unexpectedly: it was killed"):
        strike_at_start_up(0, slow_pair, signal.SIGKILL)
