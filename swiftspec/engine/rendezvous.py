"""Nodes find each other: over a store at node 0, as torch's launchers do, each says where it is and what it runs.

Nothing in the store is trusted. Facts are sealed with the secret, where there is one; the connections that follow
are refused without it. Whoever can reach the store can keep nodes from meeting, and nothing more.
"""

import hashlib
import hmac
import ipaddress
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from pydantic import Field, ValidationError
from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # public, though its annotations do not say so
from torch.distributed.distributed_c10d import PrefixStore, Store

from swiftspec.documents import Facts, first_problem

__all__ = ["Meeting", "NodeFacts", "Rendezvous", "from_torchrun", "is_loopback", "meet"]

_LOOK_EVERY_S = 0.05
_MAX_BYTES = 2**16
_PREFIX = "swiftspec"
_LOOPBACK = "127.0.0.1"
_COMPLAINT = "complaint"
_MAX_COMPLAINT = 500


class NodeFacts(Facts):
    """What a node says of itself.

    plan_sha256: of its plan file. address: of its interface towards node 0. folder: for sockets and meeting places
    that stay on the node. host: nodes that are processes of one machine have the same. num_devices: of the machine, of
    the plan's kind. ports: free ones, for channels. links: of node 0 alone, where every other node is awaited.
    """

    rank: int = Field(ge=0)
    num_nodes: int = Field(ge=1)
    version: str = Field(max_length=40)
    plan_sha256: str = Field(max_length=64)
    address: str = Field(max_length=64)
    folder: str = Field(max_length=256)
    host: int = Field(ge=0)
    num_devices: int = Field(ge=0)
    ports: tuple[int, ...] = Field(max_length=64)
    links: tuple[str, ...] = Field(default=(), max_length=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the nodes meet.

    Parameters
    ----------
    host, port : str, int
        Of node 0, which listens on that address alone.
    rank, num_nodes : int
        This node, and how many there are.
    timeout_s : float
        Longest wait for the others.
    prefix : str
        Tells meetings in one store apart.
    has_store : bool
        Somebody else, as torchrun, keeps the store: node 0 does not.
    is_process : bool
        Under torchrun every process is a node, and one rank of the plan.
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
        if not 0 < self.port < 2**16:
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


def is_loopback(address: str) -> bool:
    """Whether it never leaves this machine."""
    return ipaddress.ip_address(address).is_loopback


class Meeting:
    """The store, once this node has it: what nodes write there and read."""

    def __init__(self, store: Store, rendezvous: Rendezvous, own_address: str, secret: bytes | None) -> None:
        self.rendezvous = rendezvous
        self.own_address = own_address
        self._store = store
        self._secret = secret or b""

    def exchange(self, own: NodeFacts) -> list[NodeFacts]:
        """Facts of every node on node 0; on the others those of node 0 and their own.

        Raises
        ------
        ValueError
            If a node does not come in time, two have one rank, or they do not agree on what to run.
        """
        try:
            return self._exchange(own)
        except ValueError as error:
            self._store.set(_COMPLAINT, f"node {own.rank}: {error}"[:_MAX_COMPLAINT])
            if own.rank == 0:
                time.sleep(4 * _LOOK_EVERY_S)  # the others' time to read it: the store ends with this process
            raise
        except DistError as error:
            raise ValueError(f"node 0 at {self.rendezvous.endpoint} ended before all nodes had met") from error

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
        body = facts.model_dump_json()
        self._store.set(f"node-{facts.rank}", self._seal(facts.rank, body) + body)

    def _seal(self, rank: int, body: str) -> str:
        text = f"{self.rendezvous.prefix} {rank} {body}"
        return hmac.digest(self._secret, text.encode(), hashlib.sha256).hex()

    def _await(self, rank: int) -> NodeFacts:
        timeout_s = self.rendezvous.timeout_s
        deadline_s = time.monotonic() + timeout_s
        key = f"node-{rank}"
        while not self._store.check([key]):
            if self._store.check([_COMPLAINT]):
                raise ValueError(_shown(self._store.get(_COMPLAINT)))
            if time.monotonic() > deadline_s:
                where = f"{self.rendezvous.endpoint} within {timeout_s:g} s"
                raise ValueError(f"node {rank} of {self.rendezvous.num_nodes} did not come to {where}")
            time.sleep(_LOOK_EVERY_S)
        text = self._store.get(key)[:_MAX_BYTES].decode("utf-8", "replace")
        seal, body = text[:64], text[64:]
        if not hmac.compare_digest(seal.encode(), self._seal(rank, body).encode()):
            raise ValueError(f"node {rank} does not have the same secret; expected one file on all nodes")
        try:
            return NodeFacts.model_validate_json(body)
        except ValidationError as error:
            raise ValueError(f"node {rank} says of itself: {first_problem(error)}") from error


def _shown(complaint: bytes) -> str:
    """Text of who knows whom, for one line."""
    return "".join(
        letter if letter.isprintable() else " " for letter in complaint[:_MAX_COMPLAINT].decode("utf-8", "replace")
    )


def _agree(first: NodeFacts, own: NodeFacts) -> None:
    for name, mine, others in (
        ("--nnodes", own.num_nodes, first.num_nodes),
        ("the version of swiftspec", own.version, first.version),
        ("the plan's SHA-256", own.plan_sha256[:12], first.plan_sha256[:12]),
    ):
        if mine != others:
            raise ValueError(f"{name} is {mine} here and {others} on node 0; expected the same")


def meet(rendezvous: Rendezvous, secret: bytes | None) -> Meeting:
    """The store of all nodes: node 0's, which listens on one address and lives as long as the answer, or torchrun's.

    Raises
    ------
    ValueError
        If node 0 cannot listen, or cannot be reached in time; or without a secret between machines.
    """
    address = rendezvous.address
    if secret is None and not rendezvous.is_local and not is_loopback(address):
        raise ValueError(f"--secret is missing; {rendezvous.endpoint} is on a network, which everybody in it could use")
    listener = None
    if rendezvous.rank == 0 and not rendezvous.has_store:
        listener, own_address = _listen(rendezvous, address), address
    else:
        own_address = _reach(rendezvous, address)
    store = _store(rendezvous, address, listener)
    return Meeting(store, rendezvous, _LOOPBACK if rendezvous.is_local else own_address, secret)


def _listen(rendezvous: Rendezvous, address: str) -> socket.socket:
    try:
        return socket.create_server((address, rendezvous.port))
    except OSError as error:
        raise ValueError(
            f"--rendezvous is {rendezvous.endpoint}, where node 0 cannot listen ({os.strerror(error.errno or 0)}); "
            "expected an address of node 0 and a free port"
        ) from error


def _reach(rendezvous: Rendezvous, address: str) -> str:
    """Address of the interface towards node 0, once that can be reached."""
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


def _store(rendezvous: Rendezvous, address: str, listener: socket.socket | None) -> Store:
    """The store of torch elastic's static rendezvous, but that node 0's listens on one address, not on all.

    Its other backend, c10d, would pickle what it writes there.
    """
    store = TCPStore(
        address,
        rendezvous.port,
        is_master=listener is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=rendezvous.timeout_s),
        master_listen_fd=None if listener is None else listener.detach(),
    )
    return PrefixStore(rendezvous.prefix, store)


def from_torchrun(environment: Mapping[str, str]) -> Rendezvous:
    """What torchrun told this process: every process is a node."""
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
