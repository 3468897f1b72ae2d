"""Rendezvous: over a store at node 0, each node announces its address and what it runs.

Only holders of the secret can use the store, and it closes as soon as all nodes have met. Anyone else who can reach it
can at most keep the nodes from meeting.
"""

import ipaddress
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field, ValidationError
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though its annotations do not say so

from swiftspec.artifacts.document import Facts, first_problem
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.parallel.store import NodeStore, StoreServer

__all__ = ["PORTS", "Meeting", "NodeFacts", "Rendezvous", "from_torchrun", "meet"]

_LOOK_EVERY_S = 0.05
_PREFIX = "swiftspec"
_LOOPBACK = "127.0.0.1"
_COMPLAINT = "complaint"
_MAX_COMPLAINT = 500
_MOST_DEVICES = 2**16  # of one machine
PORTS = range(1, 2**16)  # of TCP

_IPv4 = r"\d{1,3}(\.\d{1,3}){3}"
_Port = Annotated[int, Field(ge=PORTS.start, lt=PORTS.stop)]


class NodeFacts(Facts):
    """Facts that a node announces about itself.

    plan_sha256: of its plan file. address: of its interface towards node 0. folder: for sockets and meeting places that
    stay on the node. host: the same for nodes that are processes of one machine. num_devices: the machine's devices of
    the plan's kind. ports: free ones, for channels. links: addresses at which node 0 awaits the other nodes; node 0's
    facts only.
    """

    rank: int = Field(ge=0, lt=_MOST_DEVICES)
    num_nodes: int = Field(ge=1, le=_MOST_DEVICES)
    version: str = Field(max_length=40)
    plan_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    address: str = Field(pattern=f"^{_IPv4}$")
    folder: str = Field(pattern=r"^/[^\x00-\x1f]{1,255}$")
    host: int = Field(ge=0, lt=_MOST_DEVICES)
    num_devices: int = Field(ge=0, le=_MOST_DEVICES)
    ports: tuple[_Port, ...] = Field(max_length=64)
    links: tuple[Annotated[str, Field(pattern=rf"^tcp://{_IPv4}:\d{{1,5}}$")], ...] = Field(default=(), max_length=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Address and terms of the nodes' meeting.

    Parameters
    ----------
    host, port : str, int
        Of node 0, which listens on that address only.
    rank, num_nodes : int
        This node's rank, and the number of nodes.
    timeout_s : float
        Longest wait for the others.
    prefix : str
        Separates the meetings that use one store.
    has_store : bool
        Another program, such as torchrun, keeps the store; node 0 does not.
    is_process : bool
        Under torchrun every process is a node and one rank of the plan.
    host_rank : int
        Machine of this node; processes of one machine share it.
    is_local : bool
        All nodes are processes of this machine, whatever the host's address.
    """

    host: str
    port: int
    rank: int
    num_nodes: int
    timeout_s: float = 60.0
    prefix: str = _PREFIX
    has_store: bool = False
    is_process: bool = False
    host_rank: int = 0
    is_local: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_nodes:
            raise ValueError(f"--node-rank is {self.rank}; expected 0 to {self.num_nodes - 1}, below --nnodes")
        if self.port not in PORTS:
            raise ValueError(f"the port of --rendezvous is {self.port}; expected 1 to 65535")
        if not 0 < self.timeout_s <= 86_400:
            raise ValueError(f"--rendezvous-timeout is {self.timeout_s:g}; expected up to a day, in seconds")

    @classmethod
    def at(cls, endpoint: str, *, rank: int, num_nodes: int, timeout_s: float) -> Self:
        """From `host:port`."""
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"--rendezvous is {endpoint!r}; expected HOST:PORT of node 0")
        return cls(host=host, port=int(port), rank=rank, num_nodes=num_nodes, timeout_s=timeout_s, host_rank=rank)

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The host's IPv4 address. ValueError if it has none."""
        try:
            return socket.gethostbyname(self.host)
        except OSError as error:
            raise ValueError(f"--rendezvous is {self.endpoint}: {self.host} has no address ({error})") from error


class Meeting:
    """This node's connection to the store. A context manager, which closes the store."""

    def __init__(
        self, rendezvous: Rendezvous, own_address: str, store: NodeStore, server: StoreServer | None = None
    ) -> None:
        self.rendezvous = rendezvous
        self.own_address = own_address
        self._store = store
        self._server = server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; node 0 stops listening."""
        self._store.close()
        if self._server:
            self._server.close()
            self._server = None

    def exchange(self, own: NodeFacts) -> list[NodeFacts]:
        """Facts of every node on node 0; elsewhere those of node 0 and this node. Closes the store.

        Raises
        ------
        ValueError
            If a node does not come in time, two have the same rank, or they disagree on what to run.
        """
        where = self.rendezvous.endpoint
        with self:
            try:
                return self._exchange(own)
            except PermissionError as error:
                raise ValueError(
                    f"node 0 at {where} does not have the same secret; expected one file on all nodes"
                ) from error
            except (ConnectionError, TimeoutError) as error:
                raise ValueError(f"node 0 at {where} ended before all nodes had met") from error
            except ValueError as error:
                self._complain(own.rank, str(error))
                raise

    def _complain(self, rank: int, sentence: str) -> None:
        with suppress(OSError):
            self._store.set(_COMPLAINT, f"node {rank}: {sentence}"[:_MAX_COMPLAINT])
        if rank == 0:
            time.sleep(4 * _LOOK_EVERY_S)  # time for the others to read it

    def _exchange(self, own: NodeFacts) -> list[NodeFacts]:
        rank, num_nodes = self.rendezvous.rank, self.rendezvous.num_nodes
        if self._store.add(f"claim-{rank}", 1) > 1:
            raise ValueError(f"--node-rank is {rank}, which another node has; every node needs one of its own")
        if rank == 0:
            self._post(own)
            return [own, *(self._await(other) for other in range(1, num_nodes))]
        first = self._await(0)
        _agree(first, own)
        self._post(own)
        return [first, own]

    def _post(self, facts: NodeFacts) -> None:
        self._store.set(f"node-{facts.rank}", facts.model_dump_json())

    def _await(self, rank: int) -> NodeFacts:
        timeout_s = self.rendezvous.timeout_s
        deadline_s = time.monotonic() + timeout_s
        key = f"node-{rank}"
        while not self._store.check([key]):
            if self._store.check([_COMPLAINT]):
                raise ValueError(self._store.get(_COMPLAINT).decode("utf-8", "replace"))
            if time.monotonic() > deadline_s:
                where = f"{self.rendezvous.endpoint} within {timeout_s:g} s"
                raise ValueError(
                    f"node {rank} of {self.rendezvous.num_nodes} did not come to {where}{self._strangers()}"
                )
            time.sleep(_LOOK_EVERY_S)
        try:
            facts = NodeFacts.model_validate_json(self._store.get(key))
        except ValidationError as error:
            raise ValueError(f"node {rank} announced invalid facts: {first_problem(error)}") from error
        if facts.rank != rank:
            raise ValueError(f"node {rank} announced itself as node {facts.rank}")
        return facts

    def _strangers(self) -> str:
        """Clause for a sentence: the number of refused connections."""
        refused = self._server.num_refused if self._server else 0
        if not refused:
            return ""
        connections = (
            "1 connection without the secret was" if refused == 1 else f"{refused} connections without the secret were"
        )
        return f"; {connections} refused"


def _agree(first: NodeFacts, own: NodeFacts) -> None:
    for name, mine, others in (
        ("--nnodes", own.num_nodes, first.num_nodes),
        ("the version of swiftspec", own.version, first.version),
        ("the plan's SHA-256", own.plan_sha256[:12], first.plan_sha256[:12]),
    ):
        if mine != others:
            raise ValueError(f"{name} is {mine} here and {others} on node 0; expected the same")


def meet(rendezvous: Rendezvous, curve: Curve) -> Meeting:
    """Join the store of all nodes at node 0, which listens on one address until all have met.

    Raises
    ------
    ValueError
        If node 0 cannot listen, or cannot be reached in time.
    """
    address, port = rendezvous.address, rendezvous.port
    own_address = address if rendezvous.rank == 0 and not rendezvous.has_store else _reach(rendezvous, address)
    if rendezvous.is_local:
        own_address = _LOOPBACK
    with ExitStack() as stack:
        server = None
        if rendezvous.rank == 0:
            server = stack.enter_context(_listen(rendezvous, own_address, curve))
        if rendezvous.has_store:
            address, port = _announced(rendezvous, (own_address, server.port) if server else None)
        elif server:
            address, port = own_address, server.port
        store = NodeStore(address, port, curve, timeout_s=rendezvous.timeout_s)
        stack.pop_all()
    return Meeting(rendezvous, own_address, store, server)


def _listen(rendezvous: Rendezvous, address: str, curve: Curve) -> StoreServer:
    try:
        return StoreServer(address, 0 if rendezvous.has_store else rendezvous.port, curve)
    except OSError as error:
        raise ValueError(
            f"--rendezvous is {rendezvous.endpoint}, where node 0 cannot listen ({os.strerror(error.errno or 0)}); "
            "expected an address of node 0 and a free port"
        ) from error


def _announced(rendezvous: Rendezvous, own: tuple[str, int] | None) -> tuple[str, int]:
    """Address of node 0's store, as written in torchrun's store.

    Anyone who reaches torchrun's store may write another address there, but whoever answers at it lacks the secret.
    """
    key, timeout = f"{rendezvous.prefix}/store", timedelta(seconds=rendezvous.timeout_s)
    deadline_s = time.monotonic() + rendezvous.timeout_s
    try:
        board = TCPStore(rendezvous.address, rendezvous.port, is_master=False, wait_for_workers=False, timeout=timeout)
        if own is not None:
            board.set(key, "{}:{}".format(*own))
        said = _said(board, key, deadline_s)[:_MAX_COMPLAINT]
        address, _, port = said.decode("utf-8", "replace").rpartition(":")
        if int(port) not in PORTS:
            raise ValueError(f"port {port}")
        return str(ipaddress.IPv4Address(address)), int(port)
    except (RuntimeError, ValueError, TimeoutError) as error:  # torch's DistError is a RuntimeError
        raise ValueError(f"torchrun's store at {rendezvous.endpoint} does not say where node 0 is") from error


def _said(board: TCPStore, key: str, deadline_s: float) -> bytes:
    """A value of torchrun's store, once it is there. Polls, because torch's own wait ignores signals."""
    while not board.check([key]):
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(_LOOK_EVERY_S)
    value: bytes = board.get(key)
    return value


def _reach(rendezvous: Rendezvous, address: str) -> str:
    """Address of the interface towards node 0, once node 0 can be reached."""
    deadline_s = time.monotonic() + rendezvous.timeout_s
    while True:
        try:
            with socket.create_connection((address, rendezvous.port), timeout=1.0) as connection:
                own: str = connection.getsockname()[0]
                return own
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise ValueError(
                    f"--rendezvous is {rendezvous.endpoint}, where node 0 did not answer within "
                    f"{rendezvous.timeout_s:g} s ({error.strerror or error})"
                ) from error
            time.sleep(4 * _LOOK_EVERY_S)


def from_torchrun(environment: Mapping[str, str]) -> Rendezvous:
    """Rendezvous from torchrun's environment variables: every process is a node."""
    run, restarts = environment["TORCHELASTIC_RUN_ID"], environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Rendezvous(
        host=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        rank=int(environment["RANK"]),
        num_nodes=int(environment["WORLD_SIZE"]),
        prefix=f"{_PREFIX}/{run}/{restarts}",
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        is_process=True,
        host_rank=int(environment["GROUP_RANK"]),
        is_local=environment["LOCAL_WORLD_SIZE"] == environment["WORLD_SIZE"],
    )
