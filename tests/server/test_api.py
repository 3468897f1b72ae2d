"""The server's endpoints, over HTTP."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swiftspec.loadtest import ServerClient
from swiftspec.timing.timeline import Phase
from tests.engine.conftest import two_cores
from tests.engine.processes import until
from tests.server.running import Running, events, running

pytestmark = two_cores
PROMPT = "def add(a, b):\n"
GREEDY: dict[str, Any] = {"model": "small", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
CHAT: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def streamed(server: Running, **changes: Any) -> list[Any]:
    with server.ask("/v1/completions", {**GREEDY, "stream": True, **changes}) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(events(answer))


def test_a_completion_has_the_fields_of_openais(server: Running) -> None:
    status, said = server.json("/v1/completions", GREEDY)
    assert status == 200
    assert said["id"].startswith("cmpl-")
    assert (said["object"], said["model"]) == ("text_completion", "small")
    (choice,) = said["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")
    assert said["usage"]["completion_tokens"] == 24
    assert said["usage"]["total_tokens"] == said["usage"]["prompt_tokens"] + 24


def test_a_stream_has_a_chunk_for_every_commit_and_the_same_text(server: Running) -> None:
    _, whole = server.json("/v1/completions", GREEDY)
    chunks = streamed(server, stream_options={"include_usage": True})
    *parts, last = chunks
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]
    assert [part["choices"][0]["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert 1 < len(parts) <= 24
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_usage_comes_with_every_chunk_if_wanted(server: Running) -> None:
    counted = [
        chunk["usage"]["completion_tokens"]
        for chunk in streamed(server, stream_options={"continuous_usage_stats": True})
    ]
    assert counted == sorted(counted)
    assert counted[-1] == 24


def test_a_prompt_may_be_token_ids_or_a_list_of_one_text(server: Running) -> None:
    _, tokenized = server.json("/tokenize", {"prompt": PROMPT})
    texts = {
        server.json("/v1/completions", {**GREEDY, "prompt": prompt})[1]["choices"][0]["text"]
        for prompt in (tokenized["tokens"], [tokenized["tokens"]], [PROMPT])
    }
    assert texts == {server.json("/v1/completions", GREEDY)[1]["choices"][0]["text"]}
    _, text = server.json("/detokenize", {"tokens": tokenized["tokens"]})
    assert text["prompt"] == PROMPT
    assert tokenized["count"] == len(tokenized["tokens"])


def test_a_seed_gives_the_same_text_again_and_another_one_another(server: Running) -> None:
    def text(**options: Any) -> str:
        said = server.json("/v1/completions", {**GREEDY, "temperature": 1.5, **options})[1]
        return str(said["choices"][0]["text"])

    assert text(seed=7) == text(seed=7)
    assert len({text(seed=seed) for seed in range(4)}) > 1


def test_output_ends_before_a_stop_text(server: Running) -> None:
    text = server.json("/v1/completions", GREEDY)[1]["choices"][0]["text"]
    stop = text[9:11]
    status, said = server.json("/v1/completions", {**GREEDY, "stop": [stop, "never there"]})
    assert status == 200
    assert said["choices"][0]["text"] == text[: text.index(stop)]
    assert said["choices"][0]["finish_reason"] == "stop"
    chunks = streamed(server, stop=stop)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_prompt_comes_back_with_its_log_probs(server: Running) -> None:
    scoring = {"model": "small", "prompt": PROMPT, "max_tokens": 0, "echo": True}
    status, said = server.json("/v1/completions", {**scoring, "logprobs": 0})
    assert status == 200
    (choice,) = said["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == PROMPT
    starts = zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
    assert all(PROMPT[at:].startswith(token) for at, token in starts)
    first, *others = logprobs["token_logprobs"]
    assert first is None
    assert all(each < 0 for each in others)
    assert logprobs["top_logprobs"] is None
    assert said["usage"] == {
        "prompt_tokens": len(others) + 1,
        "completion_tokens": 0,
        "total_tokens": len(others) + 1,
    }


def test_the_likeliest_tokens_are_the_ones_that_would_be_written(server: Running) -> None:
    """The text of a greedy completion is the likeliest token at each of its places."""
    written = server.json("/v1/completions", GREEDY)[1]["choices"][0]["text"]
    body = {"model": "small", "prompt": PROMPT + written, "max_tokens": 0, "echo": True, "logprobs": 2}
    logprobs = server.json("/v1/completions", body)[1]["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][0] is None
    num_written = sum(at >= len(PROMPT) for at in logprobs["text_offset"])
    assert num_written > 10
    for token, own, likeliest in zip(
        *(logprobs[name][-num_written:] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert len(likeliest) == 2
        assert likeliest[token] == max(likeliest.values()) == pytest.approx(own, rel=1e-5)


def test_scored_prompts_are_counted_and_leave_no_place_taken(server: Running) -> None:
    def scored() -> tuple[float, float]:
        return server.metric("swiftspec:prompt_tokens_total"), server.metric("swiftspec:request_success_total")

    tokens, requests = scored()
    body = {"model": "small", "prompt": [5] * 40, "max_tokens": 0, "echo": True, "logprobs": 0}
    assert server.json("/v1/completions", body)[1]["usage"]["prompt_tokens"] == 40
    until(lambda: scored() == (tokens + 40, requests + 1), within_s=60.0)
    until(lambda: server.metric("swiftspec:num_requests_running") == 0, within_s=60.0)


def test_completions_have_16_tokens_unless_they_say(server: Running) -> None:
    body = {field: value for field, value in GREEDY.items() if field != "max_tokens"}
    assert server.json("/v1/completions", body)[1]["usage"]["completion_tokens"] == 16


def test_harmless_values_of_unsupported_fields_pass(server: Running) -> None:
    harmless: dict[str, Any] = {
        "n": 1,
        "logprobs": None,
        "repetition_penalty": 1.0,
        "best_of": 1,
        "logit_bias": {},
        "metadata": {"of": "mine"},
    }
    assert server.json("/v1/completions", {**GREEDY, **harmless})[0] == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 129}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"unknown": 5}, "unknown"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"min_tokens": 25}, "min_tokens"),
        ({"stop_token_ids": [99999]}, "stop_token_ids"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"echo": True}, "echo"),
        ({"echo": True, "max_tokens": 0}, "logprobs"),
        ({"echo": True, "max_tokens": 0, "logprobs": 21}, "logprobs"),
        ({"echo": True, "max_tokens": 0, "logprobs": 0, "stream": True}, "stream"),
        ({"echo": True, "max_tokens": 0, "logprobs": 0, "n": 2}, "n"),
        ({"echo": True, "max_tokens": 0, "logprobs": 0, "prompt": "x" * 5000}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"stop": ["a"] * 9}, "stop"),
        ({"prompt": ["one", "two"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5, 99999]}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"slo": {"tpot_ms": -5}}, "slo.tpot_ms"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(server: Running, change: dict[str, Any], param: str) -> None:
    status, said = server.json("/v1/completions", {**GREEDY, **change})
    assert status == 400
    assert said["error"]["param"] == param
    assert param.split(".")[0] in said["error"]["message"]
    assert said["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in said["error"]["message"]


def test_a_prompt_that_is_too_long_is_told_the_limit(server: Running) -> None:
    _, models = server.json("/v1/models")
    (model,) = models["data"]
    status, said = server.json("/v1/completions", {**GREEDY, "max_tokens": model["max_model_len"]})
    assert status == 400
    assert f"maximum context length is {model['max_model_len']} tokens" in said["error"]["message"]
    assert said["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b"\x00" * 100, b'{"prompt": 5}'])
def test_a_body_that_is_none_is_refused(server: Running, body: bytes) -> None:
    status, said = server.json("/v1/completions", body)
    assert status == 400
    assert said["error"]["message"]


def test_another_model_is_not_found(server: Running) -> None:
    status, said = server.json("/v1/completions", {**GREEDY, "model": "large"})
    assert (status, said["error"]["code"]) == (404, "model_not_found")


def test_a_model_without_a_chat_template_says_so(server: Running) -> None:
    status, said = server.json("/v1/chat/completions", CHAT)
    assert status == 400
    assert "no chat template" in said["error"]["message"]


def test_paths_and_methods_that_do_not_exist_are_errors_of_the_api(server: Running) -> None:
    assert server.json("/v1/embeddings", {"input": "a"})[0] == 404
    status, said = server.json("/v1/completions")
    assert status == 405
    assert "GET /v1/completions" in said["error"]["message"]


def test_the_request_id_of_a_client_comes_back(server: Running) -> None:
    with server.ask("/v1/completions", GREEDY, **{"x-request-id": "mine-7"}) as answer:
        assert answer.headers["x-request-id"] == "mine-7"
        assert json.loads(answer.read())["id"] == "cmpl-mine-7"
    with server.ask("/v1/completions", GREEDY, **{"x-request-id": "x" * 1000}) as answer:
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_health_version_models_and_the_page(server: Running) -> None:
    with server.ask("/health") as answer:
        assert (answer.status, answer.read()) == (200, b"")
    assert re.match(r"\d+\.\d+", server.json("/version")[1]["version"])
    assert server.json("/v1/models")[1]["data"][0]["id"] == "small"
    with server.ask("/") as answer:
        assert b"<title>swiftspec serve</title>" in answer.read()


def test_timelines_of_the_last_requests_are_kept_by_their_ids(server: Running) -> None:
    client = ServerClient(server.url)

    def kept(*names: str) -> bool:
        return {timeline.request for timeline in client.timelines()} >= set(names)

    server.wait_until_idle(within_s=60.0)  # one that another test left would end among ours
    for number in range(4):
        name = f"kept-{number}"
        with server.ask("/v1/completions", GREEDY, **{"x-request-id": name}) as answer:
            assert answer.read()
        until(partial(kept, name))  # a request ends after its answer: on a busy machine, perhaps after the next one
    assert kept("kept-1", "kept-2", "kept-3")
    assert len(client.timelines()) == 3
    for timeline in client.timelines():
        assert sum(commit.tokens for commit in timeline.commits) == 24
        assert timeline.phase(Phase.PREFILL)
    with server.ask("/timelines") as answer:
        assert PROMPT.encode() not in answer.read()


def test_a_server_keeps_no_timelines_unless_asked_to(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, log=tmp_path / "log") as plain:
        assert ServerClient(plain.url).timelines() == []
        status, said = plain.json("/timelines")
        assert (status, said["error"]["message"]) == (
            404,
            "this server keeps no timelines; expected one with --set keep_timelines=N",
        )


def test_the_live_view_has_numbers_and_no_text(server: Running) -> None:
    server.json("/v1/completions", GREEDY)
    with server.ask("/live") as answer:
        state = json.loads(next(line for line in answer if line.startswith(b"data: "))[6:])
    assert state["phase"] == "ready"
    assert state["draft"] in ("ready", "none")
    assert state["num_finished"] >= 1
    assert PROMPT.strip() not in json.dumps(state)


def test_metrics_count_what_clients_were_told(server: Running) -> None:
    before = {name: server.metric(f"swiftspec:{name}_total") for name in ("generation_tokens", "prompt_tokens")}
    rounds = server.metric("swiftspec:verifications_total")
    _, said = server.json("/v1/completions", {**GREEDY, "slo": {"ttft_ms": 60_000, "tpot_ms": 60_000}})
    told = {"generation_tokens": said["usage"]["completion_tokens"], "prompt_tokens": said["usage"]["prompt_tokens"]}
    wanted = {name: before[name] + told[name] for name in told}
    until(lambda: {name: server.metric(f"swiftspec:{name}_total") for name in told} == wanted, within_s=60.0)
    assert server.metric("swiftspec:slo_met_total") >= 1
    assert 0 < server.metric("swiftspec:verifications_total") - rounds < 24
    assert server.metric("swiftspec:rows_asked_total") >= server.metric("swiftspec:rows_granted_total") > 0
    assert server.metric("swiftspec:draft_state") == 1
    assert server.metric("swiftspec:time_to_first_token_seconds_count") > 0
    accepted = server.metric("swiftspec:spec_decode_num_accepted_tokens_total")
    assert accepted == server.metric("swiftspec:spec_decode_num_accepted_tokens_per_pos_total")


def test_a_client_that_closes_as_soon_as_it_has_its_answer_is_counted_as_answered(server: Running) -> None:
    """The server may still be ending the request when the connection closes."""
    before = server.metric("swiftspec:request_success_total"), server.metric("swiftspec:request_failed_total")
    for _ in range(30):
        assert server.json("/v1/completions", {**GREEDY, "max_tokens": 3})[0] == 200
    until(lambda: server.metric("swiftspec:request_success_total") == before[0] + 30, within_s=60.0)
    assert server.metric("swiftspec:request_failed_total") == before[1]


def test_without_a_seed_every_answer_is_another_one_and_its_seed_repeats_it(server: Running) -> None:
    asked = {**GREEDY, "temperature": 1.0}
    answers = [server.json("/v1/completions", asked)[1] for _ in range(8)]
    texts = [answer["choices"][0]["text"] for answer in answers]
    assert len(set(texts)) == 8
    for answer, text in zip(answers, texts, strict=True):
        again = server.json("/v1/completions", {**asked, "seed": answer["seed"]})[1]
        assert (again["choices"][0]["text"], again["seed"]) == (text, answer["seed"])
    chunks = streamed(server, temperature=1.0)
    assert isinstance(chunks[-1]["seed"], int)
    assert not any("seed" in chunk for chunk in chunks[:-1])
    assert "seed" not in server.json("/v1/completions", GREEDY)[1]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-45, 1e-38, 1e-20, 1e-6, 9e-6])
def test_a_tiny_temperature_is_greedy(server: Running, temperature: float) -> None:
    greedy = server.json("/v1/completions", GREEDY)[1]["choices"]
    assert server.json("/v1/completions", {**GREEDY, "temperature": temperature})[1]["choices"] == greedy


def test_a_prompt_may_be_scored_with_the_next_token(server: Running) -> None:
    """As lm-eval asks: its last entry is that of the token that follows."""
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    status, said = server.json("/v1/completions", asked)
    assert status == 200
    choice, usage = said["choices"][0], said["usage"]
    alone = server.json("/v1/completions", {**asked, "max_tokens": 0})[1]["choices"][0]
    following = server.json("/v1/completions", {**GREEDY, "max_tokens": 1})[1]["choices"][0]["text"]
    assert choice["text"] == PROMPT + following
    assert (usage["completion_tokens"], usage["prompt_tokens"]) == (1, len(alone["logprobs"]["tokens"]))
    for name, values in alone["logprobs"].items():
        assert choice["logprobs"][name][:-1] == values
    likeliest = choice["logprobs"]["top_logprobs"][-1]
    assert likeliest == {following: choice["logprobs"]["token_logprobs"][-1]}
    greedy = server.json("/v1/completions", {**asked, "prompt": PROMPT + following})[1]["choices"][0]["logprobs"]
    place = len(PROMPT)  # a token a character
    assert greedy["token_logprobs"][place] == max(greedy["top_logprobs"][place].values())  # to the last bit
    assert server.json("/v1/completions", {**asked, "temperature": 1})[0] == 400
    assert server.json("/v1/completions", {**asked, "max_tokens": 2})[0] == 400


def test_limits_of_latency_have_a_least_value(server: Running) -> None:
    for limit in (5e-324, 1e-4, 0, -1, "NaN"):
        status, said = server.json("/v1/completions", {**GREEDY, "slo": {"tpot_ms": limit}})
        assert (status, said["error"]["param"]) == (400, "slo.tpot_ms")


def test_names_that_are_kept_are_short(server: Running) -> None:
    for field in ("user", "model"):
        assert server.json("/v1/completions", {**GREEDY, field: "x" * 257})[0] == 400
