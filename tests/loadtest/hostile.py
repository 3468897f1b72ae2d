"""A server that answers as no server should: on this machine, by a script for each path."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

WITHIN_S = 60.0  # far more than any of this takes, against hanging
_MOST_BYTES = 1 << 30  # of an endless answer, so that no mistake here fills the memory
Result = TypeVar("Result")


@dataclass(kw_only=True)
class Hostile:
    """A running one: its address, what it was asked, and how much it has sent.

    It is over once `ended` is set: then nobody is answered any more.
    """

    url: str
    heads: list[bytes] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    num_sent: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, connection: socket.socket, content: bytes) -> None:
        self.num_sent += len(content)
        connection.sendall(content)


Script = Callable[[Hostile, socket.socket], None]


def answer(content: object, *, status: str = "200 OK", headers: bytes = b"", length: int | str | None = None) -> bytes:
    """An answer with a body: bytes, or what becomes JSON. length: what the headers say of it."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    said = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-length: {said}\r\n".encode() + headers + b"\r\n" + body


def events(*data: object, done: bool = True) -> bytes:
    """A stream's head and events: bytes, or what becomes JSON."""
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in data]
    lines += [b"[DONE]"] if done else []
    body = b"".join(b"data: %b\n\n" % line for line in lines)
    return b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body


def says(content: bytes) -> Script:
    """It sends this, and closes the connection."""
    return lambda server, connection: server.send(connection, content)


def again_and_again(head: bytes, piece: bytes, *, every_s: float = 0.0) -> Script:
    """It sends this, and then a piece again and again until the client has had enough."""

    def script(server: Hostile, connection: socket.socket) -> None:
        server.send(connection, head)
        while server.num_sent < _MOST_BYTES and not server.ended.wait(every_s):
            server.send(connection, piece)

    return script


def _honest(path: str, body: Any) -> bytes:
    match path:
        case "/v1/models":
            return answer({"data": [{"id": "served"}]})
        case "/tokenize":
            return answer({"tokens": [1, 2, 3]})
        case "/v1/completions" if body.get("echo"):
            return answer({"choices": [{"logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.0]}}]})
        case "/v1/completions" if not body.get("stream"):
            usage = {"completion_tokens": 2}
            return answer({"choices": [{"text": "ab", "finish_reason": "stop"}], "usage": usage})
        case "/v1/completions":
            usage = {"completion_tokens": body["max_tokens"]}
            return events({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, {"choices": [], "usage": usage})
    return answer({"error": {"message": "no such path"}}, status="404 Not Found")


def _serve(server: Hostile, scripts: Mapping[str, Script], connection: socket.socket) -> None:
    with connection, suppress(OSError):
        head, _, body = connection.recv(1 << 16).partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(1 << 16)
        server.heads.append(head)
        path = head.split(b" ")[1].decode()
        server.bodies.append(json.loads(body or b"null"))
        script = scripts.get(path) or says(_honest(path, server.bodies[-1]))
        script(server, connection)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(1.0)
        connection.recv(1)  # until the client closes it: closing first might discard what was sent


@contextmanager
def hostile(scripts: Mapping[str, Script]) -> Iterator[Hostile]:
    """A server with scripts by path; on all others it answers as it should."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Hostile(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        threads: list[threading.Thread] = []

        def accept() -> None:
            while not server.ended.is_set():
                with suppress(OSError):
                    connection, _ = listener.accept()
                    connection.settimeout(60.0)
                    threads.append(threading.Thread(target=_serve, args=(server, scripts, connection)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield server
        finally:
            server.ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def in_time(work: Callable[[], Result]) -> Result:
    """The result of what must not hang, nor raise anything but a ValueError of one sentence."""
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except Exception as error:  # noqa: BLE001 - it is raised in the test's thread
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(WITHIN_S)


def assert_sentence(text: str) -> None:
    assert 0 < len(text) < 400, text
    assert "\n" not in text
    assert "pydantic" not in text


def written(text: object = "a", tokens: object = 1, finish: object = "stop") -> dict[str, object]:
    return {"choices": [{"text": text, "finish_reason": finish}], "usage": {"completion_tokens": tokens}}
