from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.timeline import Phase, Span
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.admission import Admission
from swiftspec.engine.cluster.agent import _Agent
from swiftspec.engine.cluster.connection import Link
from swiftspec.engine.cluster.nodes import ClusterExecutor, Peer, free_ports, shares
from swiftspec.engine.cluster.rendezvous import NodeFacts
from swiftspec.engine.cluster.wire import Clock, Close, Frame
from swiftspec.engine.process.fork_server_client import ForkedProcess, ForkServer
from swiftspec.engine.process.placement import WorkerSpec
from swiftspec.engine.process.protocol import Cancel, Committed, Failed, Finished, Ready, Setup
from swiftspec.engine.process.worker_handle import LocalWorker
from swiftspec.errors import EngineError
from swiftspec.policies.effects import Role
from tests.engine.processes import until
from tests.engine.setups import node_facts, setup

HERE = "127.0.0.1"
CURVE = Curve.derived(b"s" * 32)


def executor(*nodes: NodeFacts, owned: list[tuple[int, ...]] | None = None) -> ClusterExecutor:
    return ClusterExecutor(
        nodes, {}, owned or shares(4, 2), curve=CURVE, store=lambda: "tcp://192.0.2.0:29500", fork_server=ForkServer()
    )


def worker_spec(role: Role, *devices: int, group: int = 0) -> WorkerSpec:
    return WorkerSpec(role, group, 0, 1, devices)


def of_draft(*devices: int, rank: int = 0) -> Setup:
    """One of its two ranks."""
    models = {Role.DRAFT: ModelRef(model="m", dtype="float32")}
    return setup(role=Role.DRAFT, rank=rank, size=2, models=models, devices=devices)


def test_devices_are_shared_out_in_order() -> None:
    assert shares(4, 2) == [(0, 1), (2, 3)]
    for num_devices, num_nodes in ((3, 2), (2, 4)):
        with pytest.raises(ValueError, match=f"--nnodes is {num_nodes}; the plan's {num_devices} devices cannot be"):
            shares(num_devices, num_nodes)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(HERE, 20))) == 20


def test_what_stays_on_a_node_never_touches_the_network() -> None:
    nodes = executor(node_facts(0), node_facts(1))
    assert nodes.num_devices("cpu") == 4
    assert nodes.channel(worker_spec(Role.TARGET, 2), worker_spec(Role.DRAFT, 3)) == "ipc:///folder-1/channel-0"
    assert nodes.channel(worker_spec(Role.TARGET, 2, group=1), worker_spec(Role.DRAFT, 0)) == "tcp://192.0.2.1:5001"
    assert nodes.tp_group("a", [of_draft(2), of_draft(3, rank=1)]) == "file:///folder-1/tp-group-a"
    assert nodes.tp_group("a", [of_draft(1), of_draft(2, rank=1)]) == "tcp://192.0.2.0:29500/tp-group-a"


def test_nodes_of_one_machine_share_its_files() -> None:
    nodes = executor(node_facts(0, host=0), node_facts(1, host=0), owned=[(0,), (1,)])
    assert nodes.channel(worker_spec(Role.TARGET, 0), worker_spec(Role.DRAFT, 1)) == "ipc:///folder-0/channel-0"


def test_a_process_has_its_devices_on_one_node() -> None:
    with pytest.raises(ValueError, match=r"devices \[1, 2\] are on several nodes; a process needs all of"):
        executor(node_facts(0), node_facts(1)).start(of_draft(1, 2))


@pytest.mark.parametrize(
    ("nodes", "owned", "needed"),
    [
        ([node_facts(0), node_facts(1, num_devices=1)], [(0, 1), (2, 3)], 2),
        ([node_facts(0, host=0), node_facts(1, host=0, num_devices=2)], [(0, 1), (2,)], 3),
    ],
)
def test_a_node_with_too_few_devices_is_named(
    nodes: list[NodeFacts], owned: list[tuple[int, ...]], needed: int
) -> None:
    offered = nodes[1].num_devices
    with pytest.raises(ValueError, match=f"node 1 needs {needed} devices for this plan; it offers {offered}"):
        executor(*nodes, owned=owned)


@pytest.fixture
def ends() -> Iterator[tuple[Peer, Link]]:
    """Node 1 as node 0 sees it, and its own end."""
    link = Link(f"tcp://{HERE}:0", bind=True, curve=CURVE)
    with link, Link(link.address, bind=False, curve=CURVE) as other, ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.await_peer, 5.0)
        link.await_peer(5.0)
        waiting.result()
        yield Peer(1, link), other


def said(link: Link, count: int) -> list[Frame]:
    frames: list[Frame] = []
    while len(frames) < count:
        link.wait((), 5.0)
        frames += link.frames()
    return frames


def test_a_remote_worker_is_told_and_heard_in_order(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    first, second = peer.start(of_draft(0)), peer.start(of_draft(1))
    assert not first.poll()
    other.send(Frame(2, Ready(7, (1,), "cpu")))
    other.send(Frame(1, Committed(1, (5, 6))))
    assert first.receive() == Committed(1, (5, 6))
    assert second.poll()
    assert second.receive() == Ready(7, (1,), "cpu")
    second.send(Cancel(4))
    second.close()
    second.close()
    assert [frame.message for frame in said(other, 4)][2:] == [Cancel(4), Close()]


def test_a_remote_worker_fails_as_a_local_one(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    worker = peer.start(of_draft(0))
    other.send(Frame(1, Failed("no such model", is_user_error=True)))
    other.send(Frame(1, Failed("it was killed", is_user_error=False)))
    with pytest.raises(ValueError, match="no such model"):
        worker.receive()
    with pytest.raises(EngineError, match="it was killed"):
        worker.receive()


def test_a_worker_is_gone_with_its_node_once_all_it_said_is_heard(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    worker = peer.start(of_draft(0))
    other.send(Frame(1, Committed(1, (5,))))
    other.close()
    assert worker.receive() == Committed(1, (5,))
    with pytest.raises(EngineError, match="the draft rank 0 process was on node 1, which has gone: it ended, or was"):
        worker.receive()
    assert worker.poll()
    worker.send(Cancel(4))


def test_a_node_that_sends_nonsense_counts_as_gone(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    worker = peer.start(of_draft(0))
    other._socket.send(b"committed 1 [")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"node 1, which has gone: it sent an invalid message, a message of kind"):
            worker.receive()


def test_times_come_in_the_clock_of_node_0(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    worker = peer.start(of_draft(0))
    ahead_s = 1000.0

    def node_1() -> None:
        other.send(Frame(1, Finished(1, [Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 1, 0, 5003.0, 5004.0)])))
        for _ in range(8):
            clock = next(frame.message for frame in said(other, 1) if isinstance(frame.message, Clock))
            other.send(Frame(0, Clock(clock.asked_s, clock.asked_s + ahead_s)))

    said(other, 1)  # the setup
    with ThreadPoolExecutor() as threads:
        answering = threads.submit(node_1)
        report = worker.receive()
        answering.result()
    assert isinstance(report, Finished)
    (span,) = report.spans
    assert span.start_s == pytest.approx(4003.0, abs=0.1)
    assert span.end_s - span.start_s == pytest.approx(1.0)


def test_a_node_that_goes_before_it_says_its_time_leaves_no_times_of_its_own(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    worker = peer.start(of_draft(0))
    other.send(Frame(1, Finished(1, [Span(Role.DRAFT, Phase.EXPAND, Role.DRAFT, 1, 0, 5003.0, 5004.0)])))
    other.close()
    with pytest.raises(EngineError, match="was on node 1, which has gone"):
        worker.receive()


def test_a_node_that_does_not_say_its_time_is_not_waited_for_without_end(
    ends: tuple[Peer, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is alive: ZeroMQ answers heartbeats by itself."""
    monkeypatch.setattr("swiftspec.engine.cluster.nodes._ANSWERS_WITHIN_S", 0.5)
    peer, other = ends
    worker = peer.start(of_draft(0))
    other.send(Frame(1, Finished(1, [])))
    with pytest.raises(EngineError, match=r"on node 1, which has gone: it did not report its time within 0\.5 s"):
        worker.receive()


class Barren(ForkServer):
    """Fork server of a machine that cannot start a process."""

    def start(self, connection: int) -> ForkedProcess:
        raise EngineError("the fork server cannot be started (Cannot allocate memory)")


def test_a_process_that_cannot_be_started_is_a_failure_of_that_process_alone(ends: tuple[Peer, Link]) -> None:
    peer, other = ends
    model = ModelRef(model="demo/draft", dtype="float32")
    agent = _Agent(
        other, Admission(own=node_facts(1), first=node_facts(0), models=(model,), device="cpu"), CURVE, Barren()
    )
    worker = peer.start(replace(of_draft(0), size=1, models={Role.DRAFT: model}))
    for _ in range(100):
        other.wait((), 0.1)
        assert agent.obey()
        if worker.poll():
            break
    with pytest.raises(EngineError, match=r"^the fork server cannot be started \(Cannot allocate memory\)$"):
        worker.receive()
    assert peer.is_up


def test_a_target_group_without_a_port_is_named() -> None:
    with pytest.raises(ValueError, match=r"target group 2 needs a port of its own on node 1; it offers 2"):
        executor(node_facts(0), node_facts(1)).channel(worker_spec(Role.TARGET, 2, group=2), worker_spec(Role.DRAFT, 0))


class Lingering(LocalWorker):
    """A worker that does not end, as one that gives gigabytes back."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_over = False

    def hang_up(self) -> None:
        self.told.append("hang up")

    def kill(self) -> None:
        self.told.append("kill")

    @property
    def has_ended(self) -> bool:
        return self.is_over

    def close(self) -> None:
        raise AssertionError("this would wait")


def test_a_process_that_ends_slowly_holds_nobody_up(ends: tuple[Peer, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    peer, other = ends
    admission = Admission(own=node_facts(1), first=node_facts(0), models=(), device="cpu")
    agent, worker = _Agent(other, admission, CURVE, Barren()), Lingering()
    agent._workers[7] = worker
    peer.link.send(Frame(7, Close()))
    until(lambda: agent.obey() and not agent._workers)
    agent.attend_ending()
    assert worker.told == ["hang up"]
    monkeypatch.setattr("swiftspec.engine.cluster.agent.ENDS_WITHIN_S", 0.0)
    agent.attend_ending()
    assert worker.told == ["hang up", "kill"]
    worker.is_over = True
    agent.attend_ending()
    agent.close()  # nothing is left to wait for
    assert worker.told == ["hang up", "kill"]
