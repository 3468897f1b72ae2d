"""Requests as no client of good will sends them: odd fields, odd JSON, odd HTTP, and clients that leave."""

from __future__ import annotations

import json
import random
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e-320, 5e-324,
    1e-40, 0.5, 1.5, 2.0, 1e308, float("nan"),
    float("inf"), -float("inf"), "", "a", "NaN", "\x00", "\ud800", "\U0001f600" * 9, "x" * 300, "x" * 5000, "</script>",
    "{{ 7 * 7 }}", "../../etc/passwd", [], [[]], [[1]], [1, 2], [-1], [10**9], [2**70],
    ["a"], ["a", "b"], [None], {}, {"a": {}},
    {"type": "text"}, [{"type": "text", "text": "a"}], [{"role": "user",
    "content": "a"}], [{"role": "user"}], [5] * 3000,
)  # fmt: skip  # many short values
FIELDS = (
    "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "seed", "stop", "stream",
    "stream_options", "ignore_eos", "user", "slo", "model", "echo", "logprobs", "n", "tools", "chat_template_kwargs",
    "response_format", "suffix", "logit_bias", "tokens", "unknown", "min_tokens", "stop_token_ids", "min_p",
    "include_stop_str_in_output", "return_token_ids", "top_logprobs", "documents", "continue_final_message",
    "add_generation_prompt", "add_special_tokens", "seed",
)  # fmt: skip  # many short names
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
RAW = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /%00%ff%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 9000 + b"\r\n",
    b"GET /live HTTP/1.0\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
)
PIECES = (b"", b'"', b"{", b"[", b"\xff\xfe", b"null", b"1e999", b"\x00")
MOST_ANSWER_BYTES = 1 << 20
LISTENS_S = 2.0  # to an answer that may never end


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """What came of an odd request.

    status: of HTTP; 0 if the connection was closed without an answer. seconds: until its end.
    """

    kind: str
    sent: str
    status: int
    answer: bytes
    seconds: float

    @property
    def fault(self) -> str:
        """What is wrong with the answer, if anything is."""
        if b"Traceback" in self.answer or b'File "' in self.answer:
            return "a traceback"
        if self.status == 0 and self.kind not in ("raw", "leaves"):
            return "no answer"
        return f"status {self.status}" if self.status >= 500 and self.status != 503 else ""


def odd_request(port: int, chance: random.Random) -> Odd:
    """Send one to a server on this machine, and take what it answers."""
    kind = chance.choices(("fields", "bytes", "raw", "leaves"), (6, 2, 1, 1))[0]
    path = chance.choice(PATHS)
    body = json.dumps(_body(path, chance)).encode()
    if kind == "bytes":
        body = _cut(body, chance)
    content = chance.choice(RAW) if kind == "raw" else b""
    start_s = time.perf_counter()
    if kind in ("raw", "leaves"):
        status, answer = _raw(port, content or _request(path, body)[: chance.randrange(400)], leaves=kind == "leaves")
    else:
        status, answer = _asked(port, path, body, chance)
    seconds = time.perf_counter() - start_s
    return Odd(kind=kind, sent=f"{path} {(content or body)[:200]!r}", status=status, answer=answer, seconds=seconds)


def _body(path: str, chance: random.Random) -> dict[str, Any]:
    """A body that would be right, with one to three odd fields. It asks for few tokens, unless that is what is odd."""
    usual: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "def add(", "max_tokens": 3},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "add"}], "max_tokens": 3},
        "/tokenize": {"prompt": "def add("},
        "/detokenize": {"tokens": [5, 6, 7]},
    }
    odd = {chance.choice(FIELDS): chance.choice(VALUES) for _ in range(chance.randint(1, 3))}
    return {**usual[path], **odd}


def _cut(body: bytes, chance: random.Random) -> bytes:
    """The body with some bytes changed, left out or put in."""
    changed = bytearray(body)
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(changed) + 1)
        changed[at : at + chance.randint(0, 6)] = chance.choice(PIECES)
    return bytes(changed)


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _asked(port: int, path: str, body: bytes, chance: random.Random) -> tuple[int, bytes]:
    headers = {"content-type": chance.choices(("application/json", "text/plain", ""), (20, 1, 1))[0]}
    if chance.random() < 0.05:
        headers["x-request-id"] = chance.choice(("a" * 200, "ä", "x y", "'; drop"))
    with closing(HTTPConnection("127.0.0.1", port, timeout=30.0)) as connection, suppress(HTTPException, OSError):
        connection.request("POST", path, body, {key: value.encode() for key, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_ANSWER_BYTES)
    return 0, b""


def _raw(port: int, content: bytes, *, leaves: bool) -> tuple[int, bytes]:
    answer, until_s = b"", time.monotonic() + LISTENS_S
    with closing(socket.create_connection(("127.0.0.1", port))) as connection, suppress(OSError):
        connection.settimeout(1.0)
        connection.sendall(content)
        if leaves:
            return 0, b""
        while time.monotonic() < until_s and (piece := connection.recv(1 << 16)):
            answer += piece
    status = answer[9:12]
    return int(status) if status.isdigit() else 0, answer
