"""Answers that no server should give: each is one sentence, soon, and little of it is read."""

import json
from pathlib import Path
from socket import socket

import pytest

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.cli.app import main
from swiftspec.loadtest import ServerClient
from swiftspec.loadtest.streams import StreamedCompletion
from swiftspec.workload import make_workload
from tests.loadtest.hostile import (
    Hostile,
    Script,
    again_and_again,
    answer,
    assert_sentence,
    events,
    hostile,
    in_time,
    says,
    written,
)

TOKENS = 8
MOST_SENT = 64 << 20  # what sockets and pipes hold, and the largest limit
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = {"choices": [{"text": "a"}]}


def usage(tokens: bytes) -> bytes:
    return events(PIECE, b'{"choices": [], "usage": {"completion_tokens": %b}}' % tokens)


# On any path, for any question.
ANYWHERE: dict[str, tuple[Script, str]] = {
    "closes": (says(b""), "the connection was closed"),
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.9\r\n" * 9), "it is no HTTP, and begins with 'SSH"),
    "half a status": (says(b"HTTP/1.1 2"), "it is no HTTP"),
    "redirect": (says(answer(b"", status="302 Found", headers=b"location: http://127.0.0.1:1/\r\n")), "Found"),
    "endless headers": (again_and_again(b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 60_000 + b"\r\n"), "more than"),
    "endless header": (again_and_again(b"HTTP/1.1 200 OK\r\nx: ", b"y" * (1 << 16)), "got more than 65536 bytes"),
    "endless interim answers": (
        again_and_again(b"", (b"HTTP/1.1 100 Continue\r\nx: " + b"y" * 1000 + b"\r\n\r\n") * 100),
        "it has more than",
    ),
    "endless chunk size": (again_and_again(CHUNKED, b"0" * (1 << 16)), "got more than 65536 bytes"),
    "no chunk size": (says(CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n"), "it ended too early"),
    "a negative chunk size": (again_and_again(CHUNKED + b"-5\r\n", b"x" * (1 << 16)), ""),
    "a huge chunk size": (says(CHUNKED + b"f" * 40 + b"\r\n{}"), ""),
    "an endless error": (again_and_again(b"HTTP/1.1 500 no\r\n\r\n", b"x" * (1 << 16)), "no"),
    "an error that is a list": (says(answer([1], status="400 Bad")), "Bad"),
    "an error that is a number": (says(answer({"error": 7}, status="400 Bad")), "Bad"),
    "an error that is a text": (says(answer({"error": "so there"}, status="400 Bad")), "so there"),
    "an error of a megabyte": (says(answer({"error": {"message": "a\n" * (1 << 19)}}, status="400 Bad")), "Bad"),
    "an error of 60,000 characters": (says(answer({"error": {"message": "a " * 30_000}}, status="400 Bad")), "a a"),
    "a dripping head": (again_and_again(b"HTTP/1.1 200 OK\r\nx: ", b"y", every_s=0.1), "not complete after 2 s"),
    "dripping": (again_and_again(HEAD, b" ", every_s=0.1), "not complete after 2 s"),
    "silent": (again_and_again(HEAD, b"", every_s=0.1), "silent for 1 s"),
}
STREAMS: dict[str, tuple[Script, str]] = {
    "empty": (says(answer(b"")), "the stream ended too early"),
    "no stream": (says(answer(PIECE)), "the stream ended too early"),
    "too long for its length": (says(answer(b"data: {}\n\n", length=999)), "the stream ended too early"),
    "cut chunk": (says(CHUNKED + b"ff\r\ndata: {"), "it ended too early"),
    "endless line": (again_and_again(HEAD + b"data: ", b"x" * (1 << 16)), "it has more than"),
    "endless events": (again_and_again(HEAD, b'data: {"choices": [{"text": "a"}]}\n\n' * 1000), "it has more than"),
    "endless comments": (again_and_again(HEAD, b": hello\n\n" * 1000), "it has more than"),
    "endless line breaks": (again_and_again(HEAD, b"\n" * (1 << 16)), "it has more than"),
    "dripping events": (again_and_again(HEAD, b"data: {}\n\n", every_s=0.1), "not complete after 2 s"),
    "no JSON": (says(events(b"{")), "not a JSON document"),
    "no UTF-8": (says(events(b'{"choices": [{"text": "\xff\xfe"}]}')), "not a JSON document"),
    "half a character": (says(events(b'{"choices": [{"text": "\\ud800"}]}')), "surrogate"),
    "nested": (says(events(b"[" * 100_000)), "not a JSON document"),
    "a list": (says(events([1])), "expected a JSON object"),
    "a number": (says(events(7)), "expected a JSON object"),
    "nothing": (says(events(None)), "expected a JSON object"),
    "choices that are a number": (says(events({"choices": 7})), "choices is 7"),
    "choices that are a text": (says(events({"choices": "abc"})), "choices is 'abc'"),
    "choices that are an object": (says(events({"choices": {"0": PIECE}})), "choices is"),
    "a choice that is a number": (says(events({"choices": [7]})), "choices[0] is 7"),
    "a text that is a number": (says(events({"choices": [{"text": 7}]})), "choices[0].text is 7"),
    "an event with a text for an error": (says(events({"error": "so there"})), "so there"),
    "an event with a number for an error": (says(events({"error": 7})), "an error"),
    "an error with a number": (says(events({"error": {"message": 7}})), "an error"),
    "a long error": (says(events({"error": {"message": "a\n" * 9999}})), "a a a"),
    "usage that is a list": (says(events(PIECE, {"usage": [1]})), "usage is [1]"),
    "usage without tokens": (says(events(PIECE, {"usage": {}})), "usage.completion_tokens is missing"),
    "no usage": (says(events(PIECE)), "did not count them"),
    **{
        f"{value.decode()} tokens": (says(usage(value)), words)
        for value, words in {
            b"-1": "completion_tokens is -1",
            b"true": "completion_tokens is True",
            b'"8"': "completion_tokens is '8'",
            b"8.5": "completion_tokens is 8.5",
            b"[8]": "completion_tokens is [8]",
            b"NaN": "completion_tokens is nan",
            b"1e999": "completion_tokens is inf",
            b"9" * 17: "completion_tokens is 9999",
            b"9" * 30: "expected a number of at most 18 digits",
            b"9": "the stream counts 9 tokens; expected 8 at most",
        }.items()
    },
}
WRITTEN = {
    "a list": [1],
    "no choices": {"choices": []},
    "no usage": {"choices": [{"text": "a"}]},
    "a text that is a number": written(text=7),
    "a reason that is a number": written(finish=7),
    "a text without tokens": written(tokens=0),
    "more tokens than asked for": written(tokens=9),
    **{f"{value!r} tokens": written(tokens=value) for value in (-1, True, "1", 1.5, float("nan"), 10**30)},
}


def client(server: Hostile) -> ServerClient:
    return ServerClient(server.url, timeout_s=1.0, total_s=2.0)


def completed(server: Hostile) -> StreamedCompletion:
    return in_time(lambda: client(server).complete((1, 2, 3), model="served", num_tokens=TOKENS))


@pytest.mark.parametrize("name", [*ANYWHERE, *STREAMS])
def test_an_odd_stream_is_an_error(name: str) -> None:
    script, words = (ANYWHERE | STREAMS)[name]
    with hostile({"/v1/completions": script}) as server:
        found = completed(server)
        assert_sentence(found.error)
        assert words in found.error
        assert server.num_sent < MOST_SENT


@pytest.mark.parametrize("name", ANYWHERE)
def test_an_odd_answer_names_the_address_and_the_path(name: str) -> None:
    script, words = ANYWHERE[name]
    with hostile({"/v1/models": script}) as server:
        with pytest.raises(ValueError, match=f"--url {server.url}: .*/v1/models") as raised:
            in_time(client(server).model)
        assert_sentence(str(raised.value))
        assert words in str(raised.value)
        assert server.num_sent < MOST_SENT


@pytest.mark.parametrize("content", [{}, [], 7, {"data": 7}, {"data": {"0": 1}}, {"data": [7]}, {"data": [{"id": 7}]}])
def test_odd_models_are_an_error(content: object) -> None:
    with hostile({"/v1/models": says(answer(content))}) as server:
        with pytest.raises(ValueError, match=f"--url {server.url}: .*/v1/models") as raised:
            in_time(client(server).model)
        assert_sentence(str(raised.value))


@pytest.mark.parametrize("tokens", [7, "abc", ["a"], [1.5], [True], [-1], [10**17], [None], [[1]], {"0": 1}])
def test_odd_token_ids_are_an_error(tokens: object) -> None:
    with hostile({"/tokenize": says(answer({"tokens": tokens}))}) as server:
        with pytest.raises(ValueError, match=f"--url {server.url}: .*/tokenize") as raised:
            in_time(lambda: client(server).tokenize("text", model="served"))
        assert_sentence(str(raised.value))


@pytest.mark.parametrize("name", WRITTEN)
def test_an_odd_text_is_an_error(name: str) -> None:
    with hostile({"/v1/completions": says(answer(WRITTEN[name]))}) as server:
        with pytest.raises(ValueError, match=f"--url {server.url}: .*/v1/completions") as raised:
            in_time(lambda: client(server).write("a", model="served", num_tokens=8, temperature=0.0, seed=0))
        assert_sentence(str(raised.value))


def span(**changes: object) -> list[object]:
    fields = {"role": "target", "phase": "verify", "model": "target", "rows": 2, "tokens": 0, "start": 1.0, "end": 2.0}
    return [*(fields | changes).values(), 0]


TIMELINES: dict[str, Script] = {
    "gigabytes": again_and_again(HEAD + b"[", b'{"request":"a","start_s":0,"spans":[]},' * 10_000),
    "millions of lists": says(HEAD + b"[" + b"[]," * 8_000_000 + b"[]]"),
    "millions of errors": says(HEAD + b'[{"request":"a","start_s":0,"spans":[' + b"1," * 12_000_000 + b"1]}]"),
    "endless": again_and_again(HEAD, b" ", every_s=0.05),
    "a number": says(answer(7)),
    "no JSON": says(answer(b"{")),
    **{
        f"a span with {changes}": says(answer([{"request": "a", "start_s": 0.0, "spans": [span(**changes)]}]))
        for changes in (
            *({"rows": 0}, {"rows": -1}, {"tokens": -1}, {"role": "x"}, {"phase": "commit", "start": 0.0, "end": 0.0}),
            *({"end": 0.5}, {"end": 1.0}, {"end": 1e308}, {"end": float("nan")}, {"start": float("-inf")}),
        )
    },
}


@pytest.mark.parametrize("name", TIMELINES)
def test_odd_timelines_are_none(name: str) -> None:
    with hostile({"/timelines": TIMELINES[name]}) as server:
        assert in_time(client(server).timelines) == []
        assert server.num_sent < 2 * MOST_SENT


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    workload = make_workload(
        Arrivals(process=Process.CLOSED, num_clients=2),
        num_requests=3,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=5),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=10),
    )
    workload.save(tmp_path / "workload.json")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "some text"}\n')
    return ["--load", str(tmp_path / "workload.json"), "--prompts", str(tmp_path / "prompts.jsonl")]


COMMAND: dict[str, dict[str, Script]] = {
    "models": {"/v1/models": says(answer([1]))},
    "tokens": {"/tokenize": says(answer({"tokens": ["a"]}))},
    "closes": {"/v1/completions": says(b"")},
    "choices": {"/v1/completions": says(events({"choices": 7}))},
    "usage": {"/v1/completions": says(usage(b"true"))},
    "endless": {"/v1/completions": again_and_again(HEAD + b"data: ", b"x" * (1 << 16))},
}


@pytest.mark.parametrize("name", COMMAND)
def test_the_command_ends_with_one_sentence(name: str, files: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with hostile(COMMAND[name]) as server:
        assert in_time(lambda: main(["loadtest", "--url", server.url, *files])) == 2
    said = capfd.readouterr()
    assert said.err.startswith(f"swiftspec: error: --url {server.url}: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_odd_timelines_do_not_cost_the_figures(files: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    def names(server: Hostile) -> list[str]:
        found = [line for head in server.heads for line in head.decode().split("\r\n") if "x-request-id" in line]
        return [line.split(": ")[1] for line in found]

    def odd(server: Hostile, connection: socket) -> None:
        prefix = names(server)[0].rpartition("-")[0]
        kept = [{"request": f"{prefix}-{each}", "start_s": 0.0, "spans": []} for each in ("x", "9" * 5000, "-1", "77")]
        says(answer(kept))(server, connection)

    with hostile({"/timelines": odd}) as server:
        assert in_time(lambda: main(["loadtest", "--url", server.url, *files])) == 0
        assert len(names(server)) == 3
    assert "3 in" in capfd.readouterr().out


@pytest.mark.parametrize("key", ["", "secret"])
def test_every_request_says_that_it_is_json(key: str) -> None:
    with hostile({}) as server:
        asking = ServerClient(server.url, api_key=key)
        asking.model()
        asking.tokenize("a", model="served")
        assert asking.complete((1,), model="served", num_tokens=2).error == ""
        assert asking.write("a", model="served", num_tokens=2, temperature=0.0, seed=0).text == "ab"
    assert len(server.heads) == 4
    for head in server.heads:
        lines = head.lower().split(b"\r\n")
        assert b"content-type: application/json" in lines
        assert (b"authorization: bearer secret" in lines) == bool(key)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_may_end_its_lines_in_any_way(line_end: bytes) -> None:
    content = events(PIECE, {"usage": {"completion_tokens": 2}}).replace(b"\n\n", line_end * 2)
    with hostile({"/v1/completions": says(content)}) as server:
        found = completed(server)
    assert (found.error, found.text, found.num_tokens) == ("", "a", 2)


def test_a_stream_is_over_after_its_last_event_in_two_parts() -> None:
    def script(server: Hostile, connection: socket) -> None:
        content = events(PIECE, {"usage": {"completion_tokens": 2}})
        again_and_again(content[:-4], b"E]\n\n", every_s=0.2)(server, connection)

    with hostile({"/v1/completions": script}) as server:
        found = in_time(lambda: ServerClient(server.url).complete((1,), model="served", num_tokens=TOKENS))
    assert (found.error, found.num_tokens) == ("", 2)


def test_the_text_of_a_stream_may_have_its_end_mark() -> None:
    pieces = [{"choices": [{"text": f"\ndata: [DONE]\n{number}"}]} for number in range(3)]
    with hostile({"/v1/completions": says(events(*pieces, {"usage": {"completion_tokens": 3}}))}) as server:
        found = completed(server)
    assert found.text == "".join(f"\ndata: [DONE]\n{number}" for number in range(3))


@pytest.mark.parametrize(
    "wrong", ["http://a b", "http://x\n", "http://" + "a" * 70, "http://[::1", "http://x/\x1b[31m"]
)
def test_what_cannot_be_asked_is_no_address(wrong: str) -> None:
    with pytest.raises(ValueError, match="--url is"):
        ServerClient(wrong)


@pytest.mark.parametrize("key", ["a\nb", "\N{SNOWMAN}"])
def test_a_key_that_no_header_can_have_is_refused_unsaid(key: str) -> None:
    with pytest.raises(ValueError, match="the API key has characters") as raised:
        ServerClient("http://127.0.0.1:1", api_key=key)
    assert key not in str(raised.value)
    assert json.dumps(key)[1:-1] not in str(raised.value)
