"""Hosts as processes of their own, and an engine on them: what happens when one dies, freezes, or is not ours."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest

from swiftspec.engine.cluster.executor import ClusterExecutor
from swiftspec.engine.launcher import Launcher
from swiftspec.errors import EngineError
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from tests.engine.cluster.slots import DRAFT, SLOTS, TARGET
from tests.engine.conftest import start_engine, two_cores
from tests.engine.hosts import Host, in_namespaces, on_loopback
from tests.engine.processes import engine_processes, gone_within, until
from tests.engine.victims import PATIENCE_S, generate, longest_gap_s, once, pid_of, wait_until_ready

pytestmark = two_cores
alone = pytest.mark.alone  # what holds gaps and ends to seconds, or has ranks that wait for each other
HERE = "127.0.0.1"
Process = subprocess.Popen[str]


@pytest.fixture
def executor() -> Iterator[ClusterExecutor]:
    with ClusterExecutor(SLOTS, device="cpu", address=HERE) as executor:
        yield executor


@contextmanager
def host(executor: ClusterExecutor, slot: int, *, key: bytes | None = None) -> Iterator[Process]:
    """A host; whatever is left of it is killed in the end."""
    with started(on_loopback()[slot], *executor.launcher, (key or executor.key).hex(), slot) as process:
        yield process


@contextmanager
def started(machine: Host, *arguments: object, module: str = "tests.engine.cluster.host_process") -> Iterator[Process]:
    process = machine.start(*arguments, module=module)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def hosts(executor: ClusterExecutor) -> Iterator[dict[int, Process]]:
    with ExitStack() as stack:
        yield {slot: stack.enter_context(host(executor, slot)) for slot in (TARGET, DRAFT)}


@pytest.fixture
def engine(
    slow_pair: tuple[ModelRef, ModelRef], executor: ClusterExecutor, hosts: dict[int, Process]
) -> Iterator[Launcher]:
    executor.await_hosts(30.0)
    with start_engine(slow_pair, Layout.DISAGGREGATED, executor=executor, patience_s=PATIENCE_S) as engine:
        yield engine


def kill(process: Process) -> None:
    """All of a machine."""
    os.killpg(process.pid, signal.SIGKILL)


def ended(process: Process, within_s: float) -> tuple[int, str]:
    """Exit code and what it said."""
    _, said = process.communicate(timeout=within_s)
    return process.returncode, said


@alone
def test_a_draft_that_dies_or_freezes_costs_speed_and_comes_back(
    engine: Launcher, hosts: dict[int, Process], undisturbed: tuple[int, ...]
) -> None:
    first = generate(engine, SwiftSpec())
    assert first.tokens == undisturbed
    assert first.timeline.of(Role.DRAFT)
    assert {process.node for process in engine.processes} == {HERE}
    assert {process.cores for process in engine.processes} == {(on_loopback()[0].core,), (on_loopback()[1].core,)}
    for fault in (signal.SIGKILL, signal.SIGSTOP):
        victim = pid_of(engine, Role.DRAFT)
        generation, gap_s = longest_gap_s(engine, once(20, partial(os.kill, victim, fault)))
        assert generation.tokens == undisturbed
        assert gap_s < PATIENCE_S + 1.0
        wait_until_ready(engine)
    assert engine.num_restarts == 1
    os.kill(victim, signal.SIGCONT)
    workers = [process.pid for process in engine.processes]
    engine.close()
    assert gone_within(workers, 3.0)
    assert [each.poll() for each in hosts.values()] == [None, None]  # they serve the executor, not one engine


@alone
def test_a_draft_whose_machine_dies_comes_back_on_another(
    engine: Launcher, executor: ClusterExecutor, hosts: dict[int, Process], undisturbed: tuple[int, ...]
) -> None:
    generation, gap_s = longest_gap_s(engine, once(20, lambda: kill(hosts[DRAFT])))
    assert (generation.tokens, generation.losses) == (undisturbed, 1)
    assert gap_s < PATIENCE_S + 1.0
    assert [process.role for process in engine.processes] == [Role.TARGET]
    with host(executor, DRAFT):
        wait_until_ready(engine)
        again = generate(engine, SwiftSpec())
    assert again.tokens == undisturbed
    assert again.timeline.of(Role.DRAFT)


@alone
def test_what_the_target_said_is_kept_when_its_machine_dies(
    engine: Launcher, hosts: dict[int, Process], undisturbed: tuple[int, ...]
) -> None:
    with pytest.raises(EngineError, match=r"the target process on 127\.0\.0\.1 ended, or its node has gone") as failed:
        generate(engine, SwiftSpec(), once(20, lambda: kill(hosts[TARGET])))
    assert 20 <= len(failed.value.tokens) < len(undisturbed)
    assert failed.value.tokens == undisturbed[: len(failed.value.tokens)]


@alone
def test_ranks_on_several_hosts_compute_one_model(
    slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]
) -> None:
    ranks = [replace(spec, role=Role.TARGET, rank=rank, size=2) for rank, spec in enumerate(SLOTS)]
    with (
        ClusterExecutor(ranks, device="cpu", address=HERE) as executor,
        host(executor, 0),
        host(executor, 1),
        start_engine(slow_pair, Layout.COLOCATED, ranks={Role.TARGET: 2}, executor=executor) as engine,
    ):
        assert generate(engine, Autoregressive()).tokens == undisturbed


def test_a_second_host_of_a_slot_replaces_the_first(executor: ClusterExecutor) -> None:
    with host(executor, DRAFT) as first:
        until(lambda: executor._listener.look(DRAFT) is not None)
        with host(executor, DRAFT) as second:
            assert ended(first, 10.0) == (0, "")
            assert second.poll() is None
            executor.__exit__()
            assert ended(second, 10.0) == (0, "")


def test_strangers_keep_no_host_away(executor: ClusterExecutor) -> None:
    with ExitStack() as stack:
        for garbage in (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\0\0\0\x14" + b"#WELCOME#" * 9):
            stranger = stack.enter_context(closing(socket.create_connection(executor.launcher)))
            stranger.sendall(garbage)
        with host(executor, DRAFT, key=b"x" * 32) as other:
            code, said = ended(other, 20.0)
        assert code == 1
        assert said.startswith("there is no launcher with the run's key at 127.0.0.1:")
        assert executor._listener.look(DRAFT) is None
        stack.enter_context(host(executor, DRAFT))
        until(lambda: executor._listener.look(DRAFT) is not None, within_s=20.0)


def test_a_missing_host_is_named(executor: ClusterExecutor) -> None:
    with pytest.raises(ValueError, match=r"no host came within 0\.1 s for the target and the draft"):
        executor.await_hosts(0.1)


@contextmanager
def several(machines: tuple[Host, Host], pair: tuple[ModelRef, ModelRef]) -> Iterator[tuple[Process, Process, Process]]:
    """A launcher with the target's host on the first machine, the draft's on the second; at work."""
    references = [reference.model_dump_json() for reference in pair]
    with started(
        machines[0], machines[0].address, *references, module="tests.engine.cluster.launcher_process"
    ) as launcher:
        assert launcher.stdout
        where = launcher.stdout.readline().split()
        with started(machines[0], *where, TARGET) as target, started(machines[1], *where, DRAFT) as draft:
            assert launcher.stdout.readline() == "ready\n"
            yield launcher, target, draft


@alone
def test_hosts_end_soon_after_their_launcher_is_killed(slow_pair: tuple[ModelRef, ModelRef]) -> None:
    with several(on_loopback(), slow_pair) as (launcher, *hosts):
        workers = [worker for each in hosts for worker in engine_processes(each.pid)]
        assert len(workers) == 4  # and fork servers
        launcher.kill()
        start_s = time.monotonic()
        assert [ended(each, 5.0)[0] for each in hosts] == [0, 0]
        assert gone_within(workers, 5.0 - (time.monotonic() - start_s))


@alone
def test_a_machine_out_of_reach_counts_as_gone(
    slow_pair: tuple[ModelRef, ModelRef], undisturbed: tuple[int, ...]
) -> None:
    with in_namespaces() as machines, several(machines, slow_pair) as (launcher, target, draft):
        assert launcher.stdout
        launcher.stdout.readline()
        workers = engine_processes(draft.pid)
        start_s = time.monotonic()
        machines[0].unplug()
        assert ended(draft, 8.0)[0] == 0
        assert gone_within(workers, 1.0)
        assert 3.0 < time.monotonic() - start_s < 8.0
        outputs = [list(map(int, launcher.stdout.readline().split())) for _ in range(2)]
        assert [tuple(tokens) for _, *tokens in outputs] == [undisturbed] * 2
        assert target.poll() is None
