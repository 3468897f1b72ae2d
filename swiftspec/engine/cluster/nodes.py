"""Several nodes as one machine, seen from node 0, which runs the engine and starts processes on all of them.

Devices are numbered over all nodes. Every other node runs an agent, see `agent`.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from swiftspec.devices.local import Device
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.connection import LOOK_EVERY_S, SILENCE_S, Link
from swiftspec.engine.cluster.rendezvous import Meeting, NodeFacts
from swiftspec.engine.cluster.wire import Bye, Clock, Close, Frame, Message
from swiftspec.engine.parallel.store import StoreServer
from swiftspec.engine.process.fork_server_client import ForkServer, shared_fork_server
from swiftspec.engine.process.placement import WorkerSpec
from swiftspec.engine.process.protocol import Command, Finished, Report, Setup
from swiftspec.engine.process.worker_handle import LocalWorker, Worker, check_report
from swiftspec.errors import EngineError

__all__ = ["ClusterExecutor", "Peer", "RemoteWorker", "free_ports", "lead", "shares"]

_ANSWERS_WITHIN_S = 10.0  # an agent answers after finishing earlier commands, such as ending a worker
_CLOCK_SAMPLES = 8


def shares(num_devices: int, num_nodes: int) -> list[tuple[int, ...]]:
    """Devices of each node, numbered over all: consecutive and equally many. ValueError if that is impossible."""
    per_node, rest = divmod(num_devices, num_nodes)
    if rest or not per_node:
        raise ValueError(f"--nnodes is {num_nodes}; the plan's {num_devices} devices cannot be shared out equally")
    return [tuple(range(rank * per_node, (rank + 1) * per_node)) for rank in range(num_nodes)]


def free_ports(address: str, count: int) -> tuple[int, ...]:
    """TCP ports of an interface that are free now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((address, 0))) for _ in range(count)]
        return tuple(listener.getsockname()[1] for listener in listeners)


@dataclass(slots=True)
class Peer:
    """Another node, seen from node 0."""

    rank: int
    link: Link
    reports: dict[int, deque[Report]] = field(default_factory=dict)  # by worker
    clocks: list[Clock] = field(default_factory=list)
    fault: str = ""
    num_started: int = 0

    def start(self, setup: Setup) -> "RemoteWorker":
        """Tell the node to start a worker."""
        self.num_started += 1
        self.reports[self.num_started] = deque()
        self.link.send(Frame(self.num_started, setup))
        return RemoteWorker(self, self.num_started, setup)

    @property
    def is_up(self) -> bool:
        """Whether the node is there; everything it sent has been sorted into `reports`."""
        if self.fault:
            return False
        is_up = self.link.is_up
        try:
            for worker, message in self.link.frames():
                if isinstance(message, Clock):
                    self.clocks.append(message)
                elif worker in self.reports and isinstance(message, Report):
                    self.reports[worker].append(message)
        except ValueError as error:
            self._give_up(f"it sent an invalid message, {error}")
            return False
        return is_up

    def _give_up(self, fault: str) -> None:
        self.fault = fault
        self.link.close()

    def ahead_s(self) -> float | None:
        """Seconds by which the node's clock is ahead of this one; None if the node has gone or does not answer.

        The clock is read several times. The fastest answer counts, taken as given halfway between question and answer.
        """
        answers: list[tuple[float, float]] = []  # seconds until the answer, and how far ahead its clock is
        until_s = time.perf_counter() + _ANSWERS_WITHIN_S
        for _ in range(_CLOCK_SAMPLES):
            self.clocks.clear()
            asked_s = time.perf_counter()
            self.link.send(Frame(0, Clock(asked_s)))
            while self.is_up and not self.clocks:
                if time.perf_counter() > until_s:
                    self._give_up(f"it did not report its time within {_ANSWERS_WITHIN_S:g} s")
                    break
                self.link.wait((), LOOK_EVERY_S)
            if not self.clocks:
                break
            took_s = time.perf_counter() - asked_s
            answers.append((took_s, self.clocks[0].node_s - (asked_s + took_s / 2)))
        return min(answers)[1] if answers else None


class RemoteWorker:
    """A process on another node; its times are in this node's clock."""

    def __init__(self, peer: Peer, number: int, setup: Setup) -> None:
        self.setup = setup
        self.node = peer.rank
        self._peer = peer
        self._number = number
        self._reports = peer.reports[number]

    def send(self, command: Command) -> None:
        """Send a command; does nothing if the process is gone."""
        self._send(command)

    def poll(self) -> bool:
        """Whether `receive` would return, or raise, at once."""
        return not self._peer.is_up or bool(self._reports)

    def receive(self) -> Report:
        """Its next report. ValueError or EngineError if it failed, EngineError if its node has gone."""
        while not self.poll():
            self._peer.link.wait((), LOOK_EVERY_S)
        if not self._reports:
            raise self._lost()
        report = check_report(self._reports.popleft())
        if isinstance(report, Finished):
            ahead_s = self._peer.ahead_s()
            if ahead_s is None:  # its times are in an unknown clock
                raise self._lost()
            spans = [s._replace(start_s=s.start_s - ahead_s, end_s=s.end_s - ahead_s) for s in report.spans]
            return replace(report, spans=spans)
        return report

    def _lost(self) -> EngineError:
        why = self._peer.fault or f"it ended, or was silent for {SILENCE_S:g} s"
        return EngineError(f"the {self.setup.name} process was on node {self._peer.rank}, which has gone: {why}")

    def fileno(self) -> None:
        """Nothing: its reports come over the node's connection."""

    def hang_up(self) -> None:
        """Let it end."""
        if self._peer.reports.pop(self._number, None) is not None:
            self._send(Close())

    def kill(self) -> None:
        """Let it end; its node takes care of that."""
        self.hang_up()

    @property
    def state(self) -> str:
        """Node of the process; the node itself knows more."""
        return f"on node {self.node}"

    @property
    def has_ended(self) -> bool:
        """True: nothing here waits for another node's process."""
        return True

    def close(self) -> None:
        """Let it end; its node takes care of that."""
        self.hang_up()

    def _send(self, message: Message) -> None:
        self._peer.link.send(Frame(self._number, message))


class ClusterExecutor:
    """Executor that places an engine's processes on several nodes.

    Parameters
    ----------
    nodes : sequence of NodeFacts
        In the order of their ranks.
    peers : mapping of rank to Peer
        All except node 0.
    owned : sequence of tuple of int
        Devices of each node, numbered over all.
    curve : Curve
        Keys of the connections between nodes.
    store : callable
        Address `tcp://host:port` where TP groups that span nodes meet; called only if there are any.
    fork_server : ForkServer
        Fork server of node 0's own processes.

    Raises
    ------
    ValueError
        If a node has too few devices.
    """

    def __init__(
        self,
        nodes: Sequence[NodeFacts],
        peers: Mapping[int, Peer],
        owned: Sequence[tuple[int, ...]],
        *,
        curve: Curve,
        store: Callable[[], str],
        fork_server: ForkServer,
    ) -> None:
        self._nodes, self._peers, self._owned = nodes, peers, owned
        self._curve, self._store, self._fork_server = curve, store, fork_server
        # Nodes that are processes of one machine count its devices together.
        hosts: dict[int, int] = {}
        for node, devices in zip(nodes, owned, strict=True):
            hosts[node.host] = min(hosts.get(node.host, devices[0]), *devices)
        self._first = [hosts[node.host] for node in nodes]
        for node, devices, first in zip(nodes, owned, self._first, strict=True):
            if (needed := max(devices) - first + 1) > node.num_devices:
                raise ValueError(f"node {node.rank} needs {needed} devices for this plan; it offers {node.num_devices}")

    def num_devices(self, device: Device) -> int:  # noqa: ARG002 - every node announced its devices of that kind
        return max(map(max, self._owned)) + 1

    def channel(self, target: WorkerSpec, draft: WorkerSpec) -> str:
        node, other = self._node_of(target.devices), self._node_of(draft.devices)
        if node.host == other.host:
            return f"ipc://{node.folder}/channel-{target.group}"
        if target.group >= len(node.ports):
            raise ValueError(
                f"target group {target.group} needs a port of its own on node {node.rank}; it offers {len(node.ports)}"
            )
        return f"tcp://{node.address}:{node.ports[target.group]}"

    def tp_group(self, name: str, setups: Sequence[Setup]) -> str:
        nodes = [self._node_of(setup.devices) for setup in setups]
        if all(node.host == nodes[0].host for node in nodes):
            return f"file://{nodes[0].folder}/tp-group-{name}"
        return f"{self._store()}/tp-group-{name}"

    def start(self, setup: Setup) -> Worker:
        rank = self._node_of(setup.devices).rank
        local = replace(setup, devices=tuple(device - self._first[rank] for device in setup.devices))
        if rank:
            return self._peers[rank].start(local)
        return LocalWorker.start(replace(local, curve=self._curve), self._fork_server)

    def _node_of(self, devices: tuple[int, ...]) -> NodeFacts:
        for node, owned in zip(self._nodes, self._owned, strict=True):
            if set(devices) <= set(owned):
                return node
        raise ValueError(f"devices {list(devices)} are on several nodes; a process needs all of its devices on one")


@contextmanager
def lead(meeting: Meeting, own: NodeFacts, owned: Sequence[tuple[int, ...]], curve: Curve) -> Iterator[ClusterExecutor]:
    """Node 0's part: all nodes as one executor; they end when this context does.

    Raises
    ------
    ValueError
        If the nodes do not find each other in time, do not agree, or have too few devices.
    """
    rendezvous = meeting.rendezvous
    with ExitStack() as stack:
        others = range(1, rendezvous.num_nodes)
        links = [stack.enter_context(Link(f"tcp://{own.address}:0", bind=True, curve=curve)) for _ in others]
        nodes = meeting.exchange(own.model_copy(update={"links": tuple(link.address for link in links)}))
        peers = {rank: Peer(rank, link) for rank, link in zip(others, links, strict=True)}
        for peer in peers.values():
            peer.link.await_peer(rendezvous.timeout_s)
            stack.callback(peer.link.send, Frame(0, Bye()))

        @cache
        def store() -> str:
            return f"tcp://{own.address}:{stack.enter_context(StoreServer(own.address, 0, curve)).port}"

        fork_server = stack.enter_context(shared_fork_server())
        yield ClusterExecutor(nodes, peers, owned, curve=curve, store=store, fork_server=fork_server)
