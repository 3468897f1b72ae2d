"""Processes that really die, freeze and come back. The target's output is the same in every case that it survives."""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.errors import EngineError
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase
from tests.engine.conftest import start_engine, two_cores
from tests.engine.processes import gone_within
from tests.engine.victims import PATIENCE_S, generate, once, pid_of, wait_until_ready

pytestmark = [pytest.mark.alone, two_cores]
Fault = Callable[[Launcher], None]


@pytest.fixture(scope="module")
def shared(slow_pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(slow_pair, Layout.DISAGGREGATED, patience_s=PATIENCE_S, max_restarts=100) as engine:
        yield engine


@pytest.fixture
def engine(shared: Launcher) -> Launcher:
    """With its draft, whatever the test before has done to it."""
    wait_until_ready(shared)
    return shared


def longest_wait_s(generation: Generation) -> float:
    waits = [span for span in generation.timeline.of(Role.TARGET) if span.phase is Phase.WAIT]
    return max(span.end_s - span.start_s for span in waits)


def test_a_draft_killed_in_the_middle_costs_one_patience_and_is_started_again(
    engine: Launcher, undisturbed: tuple[int, ...]
) -> None:
    killed, num_restarts = pid_of(engine, Role.DRAFT), engine.num_restarts
    generation = generate(engine, SwiftSpec(), once(20, lambda: os.kill(killed, signal.SIGKILL)))
    assert generation.tokens == undisturbed
    assert generation.losses >= 1
    assert longest_wait_s(generation) < PATIENCE_S + 0.2
    wait_until_ready(engine)
    assert pid_of(engine, Role.DRAFT) != killed
    after = generate(engine, SwiftSpec())
    assert (after.tokens, engine.num_restarts) == (undisturbed, num_restarts + 1)
    assert after.timeline.of(Role.DRAFT)


def test_a_draft_that_comes_back_in_the_middle_joins_in_within_a_second(
    engine: Launcher, undisturbed: tuple[int, ...]
) -> None:
    """The target is frozen until the new draft is ready; otherwise it might finish before."""
    target = pid_of(engine, Role.TARGET)
    thawed_s = []

    def thaw() -> None:
        while not any(process.role is Role.DRAFT for process in engine.processes):
            time.sleep(0.02)
        os.kill(target, signal.SIGCONT)
        thawed_s.append(time.perf_counter())

    def freeze() -> None:
        os.kill(target, signal.SIGSTOP)
        threading.Thread(target=thaw).start()

    os.kill(pid_of(engine, Role.DRAFT), signal.SIGKILL)
    generation = generate(engine, SwiftSpec(), once(1, freeze))
    assert generation.tokens == undisturbed
    expansions = [span.end_s for span in generation.timeline.of(Role.DRAFT) if span.phase is Phase.EXPAND]
    assert min(expansions) - thawed_s[0] < 1.0


def test_a_draft_killed_at_the_start_is_not_waited_for_twice(engine: Launcher, undisturbed: tuple[int, ...]) -> None:
    os.kill(pid_of(engine, Role.DRAFT), signal.SIGKILL)
    assert generate(engine, SwiftSpec()).tokens == undisturbed
    second = generate(engine, SwiftSpec())
    assert (second.tokens, second.losses) == (undisturbed, 0)


def test_a_draft_that_keeps_dying_is_given_up(
    slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]
) -> None:
    with start_engine(slow_pair, Layout.DISAGGREGATED, patience_s=PATIENCE_S, max_restarts=0) as engine:
        os.kill(pid_of(engine, Role.DRAFT), signal.SIGKILL)
        for _ in range(2):
            assert generate(engine, SwiftSpec()).tokens == undisturbed
        assert [process.role for process in engine.processes] == [Role.TARGET]


def test_a_draft_whose_restarts_fail_is_given_up_with_a_word(
    tmp_path: Path, undisturbed: tuple[int, ...], slow_pair: tuple[ModelRef, ModelRef], caplog: pytest.LogCaptureFixture
) -> None:
    """Its model has gone: the sentence that it would have been refused with at the start is not lost."""
    target, draft = slow_pair
    shutil.copytree(draft.model, tmp_path / "draft")
    moved = (target, draft.model_copy(update={"model": str(tmp_path / "draft")}))
    with start_engine(moved, Layout.DISAGGREGATED, patience_s=PATIENCE_S, max_restarts=2) as engine:
        os.kill(pid_of(engine, Role.DRAFT), signal.SIGKILL)
        shutil.rmtree(tmp_path / "draft")
        deadline_s = time.monotonic() + 60.0
        while not caplog.records and time.monotonic() < deadline_s:
            assert generate(engine, SwiftSpec()).tokens == undisturbed
        assert generate(engine, SwiftSpec()).tokens == undisturbed
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the draft has died 3 times within an hour; the target decodes alone" in warning
    assert str(tmp_path / "draft") in warning


def test_a_draft_restarted_after_its_socket_was_removed_costs_no_later_losses(
    engine: Launcher, undisturbed: tuple[int, ...]
) -> None:
    removed = [path for path in Path(tempfile.gettempdir()).glob("swiftspec-*/channel-0-0") if is_held(engine, path)]
    assert removed
    for path in removed:
        path.unlink()
    os.kill(pid_of(engine, Role.DRAFT), signal.SIGKILL)
    for _ in range(3):  # the first may see it die, and may see it come back
        wait_until_ready(engine)
        generation = generate(engine, SwiftSpec())
        assert generation.tokens == undisturbed
    assert generation.losses == 0
    assert generation.timeline.of(Role.DRAFT)


def is_held(engine: Launcher, path: Path) -> bool:
    """Whether the target listens there."""
    inodes = [line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if str(path) in line]
    files = [file.readlink() for file in Path(f"/proc/{pid_of(engine, Role.TARGET)}/fd").iterdir()]
    return any(f"socket:[{inode}]" == str(file) for inode in inodes for file in files)


def test_a_frozen_target_is_waited_for_with_a_word(
    engine: Launcher, undisturbed: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    target = pid_of(engine, Role.TARGET)

    def freeze() -> None:
        os.kill(target, signal.SIGSTOP)
        threading.Thread(target=thaw).start()

    def thaw() -> None:
        deadline_s = time.monotonic() + 20.0
        while not caplog.records and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.kill(target, signal.SIGCONT)

    assert generate(engine, SwiftSpec(), once(20, freeze)).tokens == undisturbed
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"no token from the target for 3 s: process {target} is stopped" in warning


def test_a_frozen_draft_is_taken_back_within_a_second_when_it_thaws(
    engine: Launcher, undisturbed: tuple[int, ...]
) -> None:
    frozen, num_restarts = pid_of(engine, Role.DRAFT), engine.num_restarts
    thawed_s = []

    def freeze() -> None:
        os.kill(frozen, signal.SIGSTOP)
        threading.Timer(2 * PATIENCE_S, thaw).start()

    def thaw() -> None:
        os.kill(frozen, signal.SIGCONT)
        thawed_s.append(time.perf_counter())

    generation = generate(engine, SwiftSpec(), once(10, freeze))
    assert generation.tokens == undisturbed
    assert generation.losses >= 1
    assert engine.num_restarts == num_restarts
    expansions = [span.end_s for span in generation.timeline.of(Role.DRAFT) if span.phase is Phase.EXPAND]
    back_s = min(end_s for end_s in expansions if end_s > thawed_s[0])
    assert back_s - thawed_s[0] < 1.0


def test_a_draft_frozen_over_a_request_is_not_waited_for(engine: Launcher, undisturbed: tuple[int, ...]) -> None:
    frozen = pid_of(engine, Role.DRAFT)
    os.kill(frozen, signal.SIGSTOP)
    try:
        assert [generate(engine, SwiftSpec()).losses for _ in range(3)] == [1, 0, 0]
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert generate(engine, SwiftSpec()).tokens == undisturbed


def test_a_killed_target_leaves_what_it_had_generated_and_no_orphan(
    slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]
) -> None:
    with start_engine(slow_pair, Layout.DISAGGREGATED, patience_s=PATIENCE_S) as engine:
        pids = [process.pid for process in engine.processes]
        with pytest.raises(EngineError, match=r"the target process ended unexpectedly: it was killed") as failure:
            generate(engine, SwiftSpec(), once(20, lambda: os.kill(pids[0], signal.SIGKILL)))
    assert len(failure.value.tokens) >= 20
    assert failure.value.tokens == undisturbed[: len(failure.value.tokens)]
    assert gone_within(pids, 2.0)


def test_without_the_draft_that_holds_the_text_a_target_group_finishes_it(
    slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]
) -> None:
    dsi = Dsi(target_groups=2)
    with start_engine(slow_pair, Layout.DISAGGREGATED, target_groups=2, patience_s=PATIENCE_S) as engine:
        killed = pid_of(engine, Role.DRAFT)
        generation = generate(engine, dsi, once(2, lambda: os.kill(killed, signal.SIGKILL)))
        assert generation.tokens == undisturbed
        assert generation.losses > 0
        assert generate(engine, dsi).tokens == undisturbed


def test_tp_groups_of_ranks_lose_a_rank(slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]) -> None:
    ranks = {Role.TARGET: 2, Role.DRAFT: 2}
    with start_engine(slow_pair, Layout.DISAGGREGATED, ranks=ranks, patience_s=PATIENCE_S) as engine:
        killed = pid_of(engine, Role.DRAFT, rank=1)
        generation = generate(engine, SwiftSpec(), once(20, lambda: os.kill(killed, signal.SIGKILL)))
        assert generation.tokens == undisturbed
        assert generation.losses >= 1
        wait_until_ready(engine)
        pids = [process.pid for process in engine.processes]
        target = pid_of(engine, Role.TARGET, rank=1)
        with pytest.raises(EngineError, match="the target rank 1 process ended unexpectedly") as failure:
            generate(engine, SwiftSpec(), once(20, lambda: os.kill(target, signal.SIGKILL)))
    assert failure.value.tokens == undisturbed[: len(failure.value.tokens)]
    assert gone_within(pids, 2.0)
