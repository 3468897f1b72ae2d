"""The server under clients that leave, stall, flood or lie, and processes that die."""

import json
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from swiftspec.cli.app import main
from swiftspec.server.run import listen
from tests.engine.conftest import two_cores
from tests.engine.processes import engine_processes, gone_within, until, workers
from tests.server.running import Running, events, running

pytestmark = two_cores
PROMPT = "def add(a, b):\n"
LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
KEY = "a-key-of-some-length"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(server: Running, stream: bool) -> None:
    before = server.metric("swiftspec:request_cancelled_total")
    for _ in range(6):  # four run, two wait
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps({**LONG, "stream": stream}), JSON)
        time.sleep(0.02)
        connection.close()
    server.wait_until_idle(within_s=60.0)
    assert server.metric("swiftspec:request_cancelled_total") >= before + 1  # a short one may have ended before
    assert server.json("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200


def test_output_does_not_depend_on_the_others(server: Running) -> None:
    asked = {**LONG, "max_tokens": 50}
    alone = server.json("/v1/completions", asked)[1]["choices"][0]["text"]
    texts: list[str] = []

    def ask() -> None:
        texts.append(server.json("/v1/completions", asked)[1]["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [alone] * 8


def test_small_pieces_are_sent_at_once() -> None:
    """Otherwise the first chunk of a stream waits 40 ms for the client to acknowledge the headers."""
    with (
        closing(listen("127.0.0.1", 0, send_timeout_s=30.0)) as listening,
        closing(socket.create_connection(listening.getsockname())),
        closing(listening.accept()[0]) as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_connections_that_send_half_a_request_harm_nobody(server: Running) -> None:
    halves = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    for number, half in enumerate(halves):
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"[: 10 + 2 * number])
    assert server.json("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200
    for half in halves:
        half.close()
    assert server.json("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200


def test_bad_requests_of_every_kind_are_answered_with_an_error(server: Running) -> None:
    chance = random.Random(0)
    good = json.dumps({**LONG, "max_tokens": 2, "stream": True}).encode()
    for _ in range(int(os.environ.get("SWIFTSPEC_BAD_REQUESTS", "300"))):
        body = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[place] = chance.randrange(256)
                case 1:
                    del body[place : place + chance.randint(1, 9)]
                case _:
                    body[place:place] = chance.choice([b'"', b"{", b"[", b"1e999", b"\xff\xfe", b"null", b"-"])
        with server.ask("/v1/completions", bytes(body)) as answer:
            assert answer.status in (200, 400, 404), body
            content = answer.read()
            assert b"Traceback" not in content
            if answer.status != 200:
                assert json.loads(content)["error"]["message"]
    server.wait_until_idle(within_s=60.0)


def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so(server: Running) -> None:
    status, said = server.json("/v1/completions", b"x" * (9 << 20))
    assert status == 413
    assert "larger" in said["error"]["message"]
    with closing(server.connect()) as connection:
        body = iter([b"x" * (1 << 20)] * 9)
        connection.request("POST", "/v1/completions", body, JSON, encode_chunked=True)
        assert connection.getresponse().status == 413


@pytest.fixture(scope="module")
def strict(plan_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that asks for a key, and lets one request run and one wait."""
    folder = tmp_path_factory.mktemp("strict")
    (folder / "keys").write_text(f"# ours\n{KEY}\nanother-key-1\n")
    limits = ("--set", "max_running=1", "--set", "max_waiting=1", "--api-key-file", str(folder / "keys"))
    with running(plan_file, *limits, log=folder / "log") as server:
        yield server


def test_one_more_than_may_wait_is_told_when_to_come_again(strict: Running) -> None:
    before = strict.metric("swiftspec:request_refused_total")
    answers: list[tuple[int, str | None]] = []

    def ask() -> None:
        with strict.ask("/v1/completions", LONG, authorization=f"Bearer {KEY}") as answer:
            answer.read()
            answers.append((answer.status, answer.headers["retry-after"]))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(status for status, _ in answers)
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert all(int(again or 0) >= 1 for status, again in answers if status == 429)
    assert strict.metric("swiftspec:request_refused_total") == before + statuses.count(429)


def test_only_requests_with_a_key_are_served(strict: Running) -> None:
    short = {**LONG, "max_tokens": 2}
    for sent in ({}, {"authorization": "Bearer wrong-key-of-length"}, {"authorization": KEY}):
        status, said = strict.json("/v1/completions", short, **sent)
        assert (status, said["error"]["type"]) == (401, "authentication_error")
    assert strict.json("/v1/models")[0] == 401
    assert strict.json("/v1/completions", short, authorization=f"Bearer {KEY}")[0] == 200
    for path in ("/health", "/metrics"):
        with strict.ask(path) as answer:
            assert answer.status == 200


def test_sigterm_lets_the_requests_under_way_end(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, log=tmp_path / "log") as server:
        below = engine_processes(server.process.pid)
        with server.ask("/v1/completions", {**LONG, "stream": True}) as answer:
            chunks = events(answer)
            next(chunks)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: _status(server)[0] in (503, 0))  # 0: it is down already
            last = list(chunks)[-1]
        assert last["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0
        assert gone_within(below, 30.0)
    assert "Traceback" not in (tmp_path / "log").read_text()


def _status(server: Running) -> tuple[int, Any]:
    try:
        return server.json("/v1/completions", {**LONG, "max_tokens": 2})
    except OSError:
        return 0, None


def test_requests_that_take_longer_than_the_drain_are_cut_off(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, "--set", "drain_s=0", log=tmp_path / "log") as server:
        with server.ask("/v1/completions", {**LONG, "stream": True}) as answer:
            chunks = events(answer)
            next(chunks)
            server.process.send_signal(signal.SIGTERM)
            last = list(chunks)[-1]
        assert "shutting down" in last.get("error", {}).get("message", "shutting down")  # or it ended just before
        assert server.process.wait(60) == 0


def test_a_dead_target_ends_every_stream_and_the_server(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, log=tmp_path / "log") as server:
        below = engine_processes(server.process.pid)
        with server.ask("/v1/completions", {**LONG, "stream": True}) as answer:
            chunks = events(answer)
            next(chunks)
            os.kill(workers(server.process.pid)[0], signal.SIGKILL)
            last = list(chunks)[-1]
        assert "the engine failed" in last["error"]["message"]
        assert server.process.wait(60) == 3
        assert gone_within(below, 30.0)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_dead_draft_costs_no_output(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, log=tmp_path / "log") as server:
        expected = server.json("/v1/completions", LONG)[1]["choices"][0]["text"]
        with server.ask("/v1/completions", {**LONG, "stream": True}) as answer:
            chunks = events(answer)
            text = next(chunks)["choices"][0]["text"]
            os.kill(workers(server.process.pid)[1], signal.SIGKILL)
            text += "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == expected
        with server.ask("/health") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "nowhere.invalid"], "--host nowhere.invalid"),
        (["--host", "192.0.2.1"], "cannot listen there"),
        (["--policy", "magic"], "magic"),
        (["--set", "max_context=100000"], "max_context is 100000"),
        (["--set", "kv_blocks=1"], "kv_blocks is 1; expected 3 or more"),
        (["--api-key-file", "/dev/null"], "/dev/null: cannot be read"),
        (["--chat-template", "/dev/null/none"], "none"),
    ],
)
def test_what_cannot_be_served_is_one_sentence_and_exit_code_2(
    plan_file: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--plan", str(plan_file), "--port", "0", *arguments]) == 2
    errors = capsys.readouterr().err
    assert says in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()[-3:]) <= 3


def test_a_request_that_the_cache_could_never_hold_is_too_long(plan_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("{{ messages[0].content }}")
    with running(plan_file, "--set", "kv_blocks=6", "--chat-template", str(template), log=tmp_path / "log") as server:
        longest = server.json("/v1/models")[1]["data"][0]["max_model_len"]
        assert longest < 96
        for asked in (
            {**LONG, "max_tokens": longest},
            {"prompt": "x" * 95, "max_tokens": 0, "echo": True, "logprobs": 0},
            {**LONG, "prompt": "x" * 200},
        ):
            status, said = server.json("/v1/completions", asked)
            assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
        fitting = {**LONG, "max_tokens": longest - len(PROMPT)}
        assert server.json("/v1/completions", fitting)[1]["usage"]["completion_tokens"] == longest - len(PROMPT)
        talk = {"messages": [{"role": "user", "content": PROMPT}], "ignore_eos": True}
        status, said = server.json("/v1/chat/completions", talk)  # as many tokens as fit
        assert (status, said["usage"]["total_tokens"]) == (200, longest)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_news(server: Running) -> None:
    said_before = len(server.log.read_text())
    for path in ("/tokenize", "/detokenize", "/v1/completions", "/v1/chat/completions") * 5:
        with closing(socket.create_connection(("127.0.0.1", server.port))) as leaving:
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
            leaving.sendall(head.encode() + b'{"prompt": ')
            time.sleep(0.01)
    assert server.json("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200
    said = server.log.read_text()[said_before:]
    assert "Traceback" not in said
    assert len(said) < 1000


def test_a_template_that_does_not_end_harms_its_own_conversation(plan_file: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text(
        "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
        "{% endfor %}{% endif %}{{ messages[0].content }}"
    )

    def chat(content: str) -> tuple[int, Any]:
        talk = {"messages": [{"role": "user", "content": content}], "max_tokens": 2, "temperature": 0}
        return server.json("/v1/chat/completions", talk)

    with running(plan_file, "--chat-template", str(template), log=tmp_path / "log") as server:
        expected = chat("hello")
        looping = threading.Thread(target=lambda: answers.append(chat("loop")))
        answers: list[tuple[int, Any]] = []
        looping.start()
        time.sleep(0.2)
        with server.ask("/health") as answer:
            assert answer.status == 200
        assert server.json("/v1/completions", {**LONG, "max_tokens": 4})[0] == 200
        assert looping.is_alive()
        looping.join()
        ((status, said),) = answers
        assert (status, said["error"]["param"]) == (400, "messages")
        assert chat("hello")[1]["choices"] == expected[1]["choices"]
        assert server.end() == 0


@pytest.mark.parametrize("resets", [False, True])
def test_a_client_may_leave_at_every_stage_of_a_stream(server: Running, resets: bool) -> None:
    content = json.dumps({**LONG, "max_tokens": 60, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    )
    whole = head.encode() + b"\r\n\r\n" + content
    expected = server.json("/v1/completions", LONG)[1]["choices"]
    for num_sent in (0, 1, 40, len(whole) - len(content), len(whole) - 1, len(whole)):
        for num_read in (0, 1, 17, 200, 500, 3000) if num_sent == len(whole) else (0,):
            with closing(socket.create_connection(("127.0.0.1", server.port))) as leaving:
                leaving.sendall(whole[:num_sent])
                while num_read > 0 and (piece := leaving.recv(num_read)):
                    num_read -= len(piece)
                if resets:
                    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.wait_until_idle(within_s=60.0)
    assert server.json("/v1/completions", LONG)[1]["choices"] == expected
