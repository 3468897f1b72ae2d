"""A load test of a server of one's own whose answers come at known times, and of what is no such server."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from swiftspec.api.load_testing import load_test
from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.load_report import LoadTest
from swiftspec.artifacts.workload import RequestClass, Workload
from swiftspec.loadtest import drawn_prompts
from swiftspec.workload import Prefixes, make_workload

GAP_S = 0.01


class Handler(BaseHTTPRequestHandler):
    """Streams two tokens a chunk, a chunk every `GAP_S`; refuses prompts that begin with token 9."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "served"}]})  # to whatever is asked for, as some servers do

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            self._json(200, {"tokens": [ord(letter) % 7 for letter in body["prompt"]]})
            return
        assert body["ignore_eos"]
        assert body["model"] == "served"
        if self.headers["authorization"] != "Bearer secret":
            self._json(401, {"error": {"message": "no key"}})
            return
        if len(body["prompt"]) == 66:
            self._json(429, {"error": {"message": "busy"}})
            return
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        if len(body["prompt"]) == 77:
            self._event({"error": {"message": "the target died"}})
            return
        for _ in range(0, body["max_tokens"], 2):
            time.sleep(GAP_S)
            self._event({"choices": [{"text": "ab"}]})
        self._event({"choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def workload(arrivals: Arrivals, *, num_requests: int = 12, prompt_tokens: int = 5, **limits: float) -> Workload:
    return make_workload(
        arrivals,
        num_requests=num_requests,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=prompt_tokens),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=10),
        classes=(RequestClass(name="chat", **limits),),
    )


OPEN = Arrivals(process=Process.CONSTANT, rate=40.0)
LATE_S = 1.0  # of a thread, on a machine that does much else


def test_latencies_are_those_of_the_chunks(url: str) -> None:
    sent = load_test(url, workload(OPEN), ["some text", "other"], api_key="secret")
    metrics = sent.metrics
    assert metrics.completed == 12
    assert metrics.ttft_s.mean >= GAP_S
    assert metrics.e2el_s.mean >= 5 * GAP_S
    assert metrics.tpot_s.mean == pytest.approx((metrics.e2el_s.mean - metrics.ttft_s.mean) / 9)
    assert sent.tokens_per_iteration == pytest.approx(9 / 4)
    # None is sent before its time, nor later than is told, but for the moment until its thread runs.
    for number, request in enumerate(sent.requests, start=1):
        assert number / 40 <= request.sent_s <= number / 40 + sent.late_s + LATE_S
    assert sent.failures == {}


def test_a_closed_loop_has_no_more_under_way_than_clients(url: str) -> None:
    sent = load_test(url, workload(Arrivals(process=Process.CLOSED, num_clients=3)), ["text"], api_key="secret")
    spans = [(request.sent_s, request.chunks_s[-1]) for request in sent.requests]
    most = max(sum(start_s <= at_s < end_s for start_s, end_s in spans) for at_s, _ in spans)
    assert most == 3


def test_limits_of_a_class_are_judged_by_what_the_client_saw(url: str) -> None:
    easy = load_test(url, workload(OPEN, ttft_s=30.0, tpot_s=30.0), ["text"], api_key="secret")
    hard = load_test(url, workload(OPEN, ttft_s=0.001), ["text"], api_key="secret")
    assert (easy.metrics.attainment, hard.metrics.attainment) == ({"chat": 1.0}, {"chat": 0.0})


def test_the_file_says_what_was_sent(url: str, tmp_path: Any) -> None:
    asked = workload(OPEN)
    made = load_test(url + "/v1", asked, ["text"], api_key="secret")
    made.save(tmp_path / "test.json")
    read = LoadTest.load(tmp_path / "test.json")
    assert read == made
    assert (read.model, read.workload) == ("served", str(asked.arrivals))


@pytest.mark.parametrize(("prompt_tokens", "why"), [(66, "busy"), (77, "the target died")])
def test_a_server_that_fails_every_request_is_an_error(url: str, prompt_tokens: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load_test(url, workload(OPEN, prompt_tokens=prompt_tokens), ["text"], api_key="secret")


def test_a_missing_key_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        load_test(url, workload(OPEN), ["text"])


@pytest.mark.parametrize("wrong", ["ftp://x", "127.0.0.1:8000", "http://", "http://x:99999", ""])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="--url"):
        load_test(wrong, workload(OPEN), ["text"])


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"--url http://127\.0\.0\.1:9: no answer"):
        load_test("http://127.0.0.1:9", workload(OPEN), ["text"])


def test_turns_that_wait_for_answers_are_not_sent() -> None:
    lengths = Lengths(distribution=Distribution.FIXED, tokens=4)
    chats = make_workload(
        Arrivals(process=Process.POISSON, rate=2.0),
        num_requests=4,
        prompt_tokens=lengths,
        output_tokens=lengths,
        prefixes=Prefixes(turns=2, think_time_s=1.0),
    )
    with pytest.raises(ValueError, match=r"requests\[1\]\.think_time_s is 1; a load test cannot wait for the answer"):
        load_test("http://127.0.0.1:1", chats, ["text"])


def test_requests_that_share_a_stretch_are_sent_the_same_tokens() -> None:
    shared = Prefixes(system_prompt_tokens=20, system_prompts=3)
    lengths = Lengths(distribution=Distribution.FIXED, tokens=15)
    asked = make_workload(
        Arrivals(process=Process.POISSON, rate=2.0),
        num_requests=30,
        prompt_tokens=lengths,
        output_tokens=lengths,
        prefixes=shared,
    )
    sent = drawn_prompts(asked, [tuple(range(50)), tuple(range(100, 130))], seed=0)
    assert {len(prompt) for prompt in sent} == {35}
    beginnings = [prompt[:20] for prompt in sent]
    assert beginnings == beginnings[:3] * 10
    assert len(set(beginnings)) == 3
    assert len({prompt[20:] for prompt in sent}) == 2, "drawn from two"
