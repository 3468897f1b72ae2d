"""Connections within limits: by a clock of the test's, and of real strangers at a real server."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.server.connections import ConnectionLimits, Connections, Stage
from tests.engine.conftest import two_cores
from tests.engine.processes import until, workers
from tests.server.running import Running, running

SHORT: dict[str, Any] = {"prompt": "def add(a, b):\n", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
LIMITS = ConnectionLimits(most=6, head_s=10.0, body_s=60.0)
MOST_OF_A_CLIENT = 5


@dataclass(eq=False)
class Fake:
    """A connection that a test moves along."""

    peer: str = "a"
    request: tuple[int, Stage] = (0, Stage.HEAD)
    ends: list[str] = field(default_factory=list)

    def refuse(self) -> None:
        self.ends.append("refused")

    def abort(self) -> None:
        self.ends.append("aborted")

    def proceed(self, stage: Stage) -> None:
        number, before = self.request
        self.request = (number + (stage <= before), stage)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connections(clock: Clock) -> Connections:
    return Connections(LIMITS, clock=clock, free_descriptors=lambda: 1000)


def test_a_client_that_does_not_say_what_it_wants_is_given_up(connections: Connections, clock: Clock) -> None:
    silent, sending, served, again = (Fake() for _ in range(4))
    for each in (silent, sending, served, again):
        connections.add(each)
    sending.proceed(Stage.BODY)
    served.proceed(Stage.ANSWER)
    again.proceed(Stage.ANSWER)
    clock.now_s = 9.0
    connections.sweep()
    again.proceed(Stage.HEAD)  # it has its answer, and may ask again
    clock.now_s = 10.5
    connections.sweep()
    assert (silent.ends, sending.ends, served.ends, again.ends) == (["aborted"], [], [], [])
    clock.now_s = 20.0
    connections.sweep()
    assert again.ends == []
    clock.now_s = 71.0
    connections.sweep()
    assert (sending.ends, served.ends, again.ends) == (["aborted"], [], ["aborted"])
    assert len(connections) == 1


def test_one_too_many_takes_the_place_of_whoever_has_waited_longest(connections: Connections, clock: Clock) -> None:
    others = [Fake(peer="abc"[number % 3]) for number in range(6)]
    for number, each in enumerate(others):
        clock.now_s = float(number)
        connections.add(each)
        each.proceed(Stage.ANSWER if number == 0 else Stage.HEAD)
    new = Fake(peer="a")
    connections.add(new)
    assert [each.ends for each in others] == [[], [], [], ["aborted"], [], []]  # the first one is served
    assert new.ends == []
    assert len(connections) == 6


def test_one_client_leaves_places_to_others(connections: Connections) -> None:
    many = [Fake(peer="many", request=(0, Stage.ANSWER)) for _ in range(6)]
    for each in many:
        connections.add(each)
    assert [each.ends for each in many] == [[], [], [], [], [], ["refused"]]
    for each in many[5:]:
        connections.discard(each)
    one = Fake(peer="one")
    connections.add(one)
    assert one.ends == []


def test_where_descriptors_are_scarce_heads_give_way_before_bodies_and_nobody_who_is_served(clock: Clock) -> None:
    free = [1000]
    connections = Connections(LIMITS, clock=clock, free_descriptors=lambda: free[0])
    served, body, head = (Fake(request=(0, stage)) for stage in (Stage.ANSWER, Stage.BODY, Stage.HEAD))
    for each in (served, body, head):
        connections.add(each)
    free[0] = 34
    connections.sweep()
    assert (head.ends, body.ends) == ([], [])
    free[0] = 31
    connections.sweep()
    assert (head.ends, body.ends) == (["aborted"], [])
    free[0] = 20
    connections.sweep()
    assert (served.ends, body.ends) == ([], ["aborted"])
    connections.add(new := Fake())
    assert (served.ends, new.ends) == ([], ["refused"])


@given(data=st.data())
def test_there_are_never_more_than_allowed(data: st.DataObject) -> None:
    clock = Clock()
    connections, alive = Connections(LIMITS, clock=clock, free_descriptors=lambda: 1000), list[Fake]()
    for _ in range(data.draw(st.integers(1, 40))):
        clock.now_s += data.draw(st.sampled_from((0.0, 1.0, 7.0)))
        each = Fake(peer=data.draw(st.sampled_from("abc")))
        connections.add(each)
        alive.append(each)
        for other in data.draw(st.lists(st.sampled_from(alive), max_size=3)):
            other.proceed(data.draw(st.sampled_from(Stage)))
        connections.sweep()
        for gone in [other for other in alive if other.ends]:
            assert len(gone.ends) == 1
            connections.discard(gone)
            alive.remove(gone)
        assert len(connections) == len(alive) <= LIMITS.most
        assert all(sum(other.peer == peer for other in alive) <= MOST_OF_A_CLIENT for peer in "abc")


def memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return not connection.recv(1 << 16, socket.MSG_PEEK)
    except TimeoutError:
        return False
    except OSError:
        return True


@two_cores
@pytest.mark.parametrize("line", [b"a: b\r\n", b"x" * 1000], ids=["many lines", "one line"])
def test_a_head_without_end_takes_no_memory(server: Running, line: bytes) -> None:
    before = memory_bytes(server.process.pid)
    with closing(socket.create_connection(("127.0.0.1", server.port))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nhost: x\r\ny: ")
        sent = line * (1024 // len(line) + 1) * 1024
        with pytest.raises(OSError, match=r"reset|Broken pipe|closed"):
            stranger.sendall(sent * 60)
    assert memory_bytes(server.process.pid) - before < 10 << 20
    assert server.json("/v1/completions", SHORT)[0] == 200


@two_cores
def test_bodies_of_a_million_wrong_items_hold_nobody_up(server: Running) -> None:
    before = memory_bytes(server.process.pid)
    for field_, item in (("prompt", "-1"), ("prompt", "{}"), ("stop", "0"), ("prompt", "[]"), ("tools", "[]")):
        body = f'{{"prompt": "a", "{field_}": [{",".join([item] * (2_000_000 // len(item)))}]}}'.encode()
        start_s = time.perf_counter()
        status, said = server.json("/v1/completions", body)
        assert status in (400, 413)
        assert len(said["error"]["message"]) < 300
        assert time.perf_counter() - start_s < 20.0
    assert memory_bytes(server.process.pid) - before < 256 << 20


STRANGERS: dict[str, bytes] = {
    "says nothing": b"",
    "half a head": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
    "no body": b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n",
    "expects": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n",
    "upgrades": b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n",
}


@contextmanager
def strangers(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say no more than the beginning of a request, of every kind in turn."""
    with ExitStack() as stack:
        held = []
        for number in range(count):
            held.append(stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))))
            held[-1].sendall(list(STRANGERS.values())[number % len(STRANGERS)])
        yield held


@two_cores
def test_a_hundred_strangers_leave_room_where_descriptors_are_few(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, log=tmp_path / "log", before=("prlimit", "--nofile=64")) as server:
        expected = server.json("/v1/completions", SHORT)[1]["choices"]
        with strangers(server.port, 100):
            for _ in range(5):
                with server.ask("/health") as answer:
                    assert answer.status == 200
                assert server.json("/v1/completions", SHORT)[1]["choices"] == expected
        os.kill(workers(server.process.pid)[1], signal.SIGKILL)  # a draft that is restarted needs some, too
        with strangers(server.port, 100):
            until(lambda: server.metric("swiftspec:draft_state") == 1 and len(workers(server.process.pid)) == 2)
            assert server.json("/v1/completions", SHORT)[1]["choices"] == expected
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert len(said) < 2000


@two_cores
def test_strangers_are_given_up_in_time(server: Running) -> None:
    with strangers(server.port, 10) as held:
        waiting = [each for number, each in enumerate(held) if number % len(STRANGERS) not in (2, 3)]
        until(lambda: all(map(is_closed, waiting)), within_s=20.0)
        assert not any(map(is_closed, held[2:3]))  # its body may take longer


@two_cores
def test_a_body_has_to_say_that_it_is_json(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        status, said = server.json("/v1/completions", SHORT, **{"content-type": kind})
        assert (status, "content type" in said["error"]["message"]) == (415, True)
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/problem+json"):
        assert server.json("/v1/completions", SHORT, **{"content-type": kind})[0] == 200


@two_cores
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::1"},
        {"host": "a b.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://["},
    ],
    ids=str,
)
def test_pages_of_others_are_refused_where_there_are_no_keys(server: Running, headers: dict[str, str]) -> None:
    for path, body in (("/v1/completions", SHORT), ("/metrics", None)):
        with server.ask(path, body, **headers) as answer:
            assert answer.status in (400, 403)
            assert answer.headers["location"] is None


@two_cores
def test_the_servers_own_names_and_page_are_answered(server: Running) -> None:
    own = f"127.0.0.1:{server.port}"
    names: tuple[dict[str, str], ...] = (
        {},
        {"host": f"localhost:{server.port}"},
        {"host": "[::1]:80"},
        {"host": "swiftspec"},
        {"host": socket.gethostname()},
        {"host": own, "origin": f"http://{own}"},
    )
    for headers in names:
        with server.ask("/v1/models", None, **headers) as answer:
            assert answer.status == 200, headers
    with server.ask("/v1/models/") as answer:  # no redirect to a name that the client chooses
        assert answer.status == 404


@two_cores
def test_with_keys_any_name_is_answered_and_keys_may_have_any_character(plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("schl\u00fcssel-mit-umlaut\n", encoding="utf-8")
    options = ("--api-key-file", str(tmp_path / "keys"))
    with running(plan_file, *options, log=tmp_path / "log") as server:
        key = "schl\u00fcssel-mit-umlaut".encode().decode("latin-1")
        sent = {"host": "models.example", "origin": "https://app.example", "authorization": f"Bearer {key}"}
        assert server.json("/v1/completions", SHORT, **sent)[0] == 200
        assert server.json("/v1/completions", SHORT, host="models.example")[0] == 401


@two_cores
def test_an_allowed_name_is_answered_without_keys(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, "--allowed-host", "models.example", log=tmp_path / "log") as server:
        assert server.json("/v1/completions", SHORT, host="Models.Example:80")[0] == 200
        assert server.json("/v1/completions", SHORT, host="other.example")[0] == 403


@two_cores
def test_listeners_are_limited(server: Running) -> None:
    with ExitStack() as stack:
        statuses = [stack.enter_context(server.ask("/live")).status for _ in range(40)]
        assert statuses.count(200) == 32
        assert statuses.count(503) == 8
    until(lambda: server.json("/version")[0] == 200)
    with server.ask("/live") as answer:
        assert answer.status in (200, 503)
