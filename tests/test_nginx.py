"""nginx with the file of deploy/, before two replicas that are full, dead or broken, and clients that stop sending."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from swiftspec.server.guards import MOST_BODY_BYTES

CONF = Path(__file__).resolve().parents[1] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")  # often not on a user's PATH
CHANCE = random.Random(0)
PROMPT = b'{"prompt": "def main():"}'
SOON_S = 10.0  # against hanging
with_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


class Answers(BaseHTTPRequestHandler):
    """A replica's side of one connection: reads a request to its end, then does what the replica is to do."""

    protocol_version = "HTTP/1.1"
    replica: ClassVar["Replica"]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.replica.num_asked += 1
        does = self.replica.does()
        if does == "break":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif does == "stream":
            self.stream()
        else:
            self.reply({"full": 429, "starting": 503}.get(does, 200), str(len(body)).encode())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        """Send a chunk, and the next when the test says so."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.replica.may_go_on.wait(SOON_S)
        self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        pass


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@dataclass
class Replica:
    """A stand-in for a server: `mode` is what it does with requests."""

    mode: str = "free"
    num_asked: int = 0
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = Listener(("127.0.0.1", 0), type("Bound", (Answers,), {"replica": self}))
        self.port = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def does(self) -> str:
        if self.mode == "sometimes full":
            return "full" if CHANCE.random() < 0.1 else "free"
        return self.mode

    def die(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """nginx with the project's file, before two replicas."""

    port: int
    first: Replica
    second: Replica

    def ask(self, body: bytes = PROMPT) -> tuple[int, str | None, bytes]:
        """Status, `Retry-After` and body of the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SOON_S)
        try:
            connection.request("POST", "/v1/completions", body)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Retry-After"), answer.read()
        finally:
            connection.close()

    def ask_often(self, times: int) -> Counter[tuple[int, str | None]]:
        """How often each status, with its `Retry-After`, is answered to eight clients at once."""
        with ThreadPoolExecutor(8) as clients:
            return Counter(answer[:2] for answer in clients.map(lambda _: self.ask(), range(times)))

    def until_closed(self, sent: bytes) -> bytes:
        """What a client gets that sends something and then waits until nginx closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SOON_S) as client:
            client.sendall(sent)
            return b"".join(iter(lambda: client.recv(4096), b""))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def configured(ports: dict[str, int], folder: Path) -> str:
    """The project's file with other ports, short limits, and all that nginx writes in a folder."""
    text = CONF.read_text(encoding="utf-8")
    text = re.sub(r"\b(800[012])\b", lambda port: str(ports[port[1]]), text)
    for kind in ("header", "body"):
        text = text.replace(f"client_{kind}_timeout 10s", f"client_{kind}_timeout 300ms")
    text = text.replace("limit_conn clients 128", "limit_conn clients 16")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = [f"{kind}_temp_path {folder}/{kind};" for kind in kinds] + [f"access_log {folder}/access.log;"]
    return text.replace("\nhttp {\n", "\nhttp {\n" + "\n".join(own) + "\n")


@pytest.fixture
def proxy(short_folder: Path) -> Iterator[Proxy]:
    assert NGINX is not None
    short_folder.chmod(0o755)  # nginx's worker is another user if root starts it
    first, second, port = Replica(), Replica(), free_port()
    conf = short_folder / "nginx.conf"
    ports = {"8000": port, "8001": first.port, "8002": second.port}
    conf.write_text(configured(ports, short_folder), encoding="utf-8")
    log = short_folder / "error.log"
    options = f"daemon off; pid {short_folder}/pid; error_log {log};"
    nginx = subprocess.Popen([NGINX, "-p", short_folder, "-c", conf, "-g", options])
    try:
        until_listening(port, nginx, log)
        yield Proxy(port=port, first=first, second=second)
    finally:
        nginx.terminate()
        nginx.wait(SOON_S)
        first.die()
        second.die()


def until_listening(port: int, nginx: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + SOON_S
    while time.monotonic() < give_up_s:
        assert nginx.poll() is None, log.read_text(encoding="utf-8")
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail("nginx does not listen")


@with_nginx
def test_replicas_that_are_full_now_and_then_stay_in(proxy: Proxy) -> None:
    proxy.first.mode = proxy.second.mode = "sometimes full"
    found = proxy.ask_often(500)
    assert set(found) <= {(200, None), (429, "7")}
    assert found[429, "7"] <= 25  # 1 % are expected: both full


@with_nginx
@pytest.mark.parametrize("mode", ["full", "starting"])
def test_another_replica_is_asked_instead_of_one_without_room(proxy: Proxy, mode: str) -> None:
    proxy.first.mode = mode
    assert proxy.ask_often(60) == {(200, None): 60}
    assert proxy.first.num_asked > 0


@with_nginx
def test_two_full_replicas_say_when_to_come_again(proxy: Proxy) -> None:
    proxy.first.mode = proxy.second.mode = "full"
    assert proxy.ask_often(60) == {(429, "7"): 60}


@with_nginx
@pytest.mark.parametrize(("mode", "answer"), [("free", (200, None)), ("full", (429, "7"))])
def test_a_dead_replica_changes_no_answer(proxy: Proxy, mode: str, answer: tuple[int, str | None]) -> None:
    proxy.first.die()
    proxy.second.mode = mode
    assert proxy.ask_often(60) == {answer: 60}


@with_nginx
def test_a_request_that_broke_a_replica_is_not_given_to_the_other(proxy: Proxy) -> None:
    proxy.first.mode = proxy.second.mode = "break"
    assert proxy.ask()[0] == 502
    assert proxy.first.num_asked + proxy.second.num_asked == 1


@with_nginx
def test_a_body_as_long_as_the_server_takes_comes_to_the_other_replica_whole(proxy: Proxy) -> None:
    proxy.first.mode = "full"
    most = MOST_BODY_BYTES
    answers = [proxy.ask(b"x" * most) for _ in range(2)]
    assert [(status, body) for status, _, body in answers] == [(200, str(most).encode())] * 2
    assert proxy.first.num_asked > 0


@with_nginx
def test_a_longer_body_comes_to_no_replica(proxy: Proxy) -> None:
    assert proxy.ask(b"x" * (MOST_BODY_BYTES + 1))[0] == 413
    assert proxy.first.num_asked + proxy.second.num_asked == 0


@with_nginx
@pytest.mark.parametrize(
    "sent", [b"", b"POST / HTTP/1.1\r\nHo", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_a_client_that_stops_sending_is_closed_and_comes_to_no_replica(proxy: Proxy, sent: bytes) -> None:
    proxy.until_closed(sent)
    assert proxy.first.num_asked + proxy.second.num_asked == 0


@with_nginx
def test_chunks_of_a_stream_pass_at_once(proxy: Proxy) -> None:
    proxy.first.mode = proxy.second.mode = "stream"
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=SOON_S)
    connection.request("POST", "/v1/completions", PROMPT)
    answer = connection.getresponse()
    assert answer.read(5) == b"first"
    proxy.first.may_go_on.set()
    proxy.second.may_go_on.set()
    assert answer.read() == b"last"
    connection.close()


@with_nginx
def test_one_address_has_a_number_of_requests_at_once(proxy: Proxy) -> None:
    proxy.first.mode = proxy.second.mode = "stream"
    connections = [HTTPConnection("127.0.0.1", proxy.port, timeout=SOON_S) for _ in range(16)]
    for connection in connections:
        connection.request("POST", "/v1/completions", PROMPT)
        assert connection.getresponse().read(5) == b"first"
    status, retry_after, body = proxy.ask()
    assert (status, retry_after) == (429, "1")
    assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
    assert proxy.first.num_asked + proxy.second.num_asked == 16
    for connection in connections:
        connection.close()
