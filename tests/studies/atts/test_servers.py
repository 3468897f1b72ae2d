"""Scores that no server should give: each is an error of one sentence."""

from pathlib import Path
from socket import socket

import pytest

from swiftspec.cli.app import main
from swiftspec.loadtest import ServerClient
from swiftspec.studies.atts.servers import scored_prompt
from tests.loadtest.hostile import Hostile, answer, assert_sentence, hostile, in_time, says, written

LOG_PROBS = {
    "a list": [1],
    "no choices": {"choices": []},
    "choices that are a text": {"choices": "ab"},
    "a choice that is a number": {"choices": [7]},
    "log-probs of nothing": {"choices": [{"logprobs": None}]},
    "log-probs that are a list": {"choices": [{"logprobs": [1]}]},
    "fewer log-probs": {"choices": [{"logprobs": {"tokens": ["a", "b"], "token_logprobs": [None]}}]},
    **{
        f"a log-prob of {value!r}": {"choices": [{"logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, value]}}]}
        for value in ("-1", True, [1], float("nan"), float("-inf"), 1e308, -1e308, 3.0)
    },
    "tokens that are numbers": {"choices": [{"logprobs": {"tokens": [1, 2], "token_logprobs": [None, -1.0]}}]},
}


def test_a_prompt_is_scored_by_its_tokens() -> None:
    with hostile({}) as server:
        assert scored_prompt(ServerClient(server.url), "a", model="served") == [("a", None), ("b", -1.0)]


@pytest.mark.parametrize("name", LOG_PROBS)
def test_odd_log_probs_are_an_error(name: str) -> None:
    with hostile({"/v1/completions": says(answer(LOG_PROBS[name]))}) as server:
        client = ServerClient(server.url, timeout_s=1.0, total_s=2.0)
        with pytest.raises(ValueError, match=f"--url {server.url}: ") as raised:
            in_time(lambda: scored_prompt(client, "a", model="served"))
        assert_sentence(str(raised.value))


ATTS = {
    "a text that is a number": written(text=7),
    "more tokens than asked for": written(tokens=9999),
    "no tokens": {"choices": [{"logprobs": {"tokens": [], "token_logprobs": []}}]},
    "no perplexity": {"choices": [{"logprobs": {"tokens": ["a", "ab"], "token_logprobs": [None, -9999.0]}}]},
    "a log-prob of NaN": LOG_PROBS["a log-prob of nan"],
}


@pytest.mark.parametrize("name", ATTS)
def test_atts_ends_with_one_sentence(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "some text"}\n')

    def script(server: Hostile, connection: socket) -> None:
        wrong = says(answer(ATTS[name]))
        is_score = "logprobs" in str(ATTS[name])
        (wrong if server.bodies[-1].get("echo", False) == is_score else says(answer(written())))(server, connection)

    with hostile({"/v1/completions": script}) as server, hostile({}) as draft:
        command = ["study", "atts", "--questions", str(questions), "--url", server.url, "--draft-url", draft.url]
        assert in_time(lambda: main(command)) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"swiftspec: error: --url {server.url}: ")
    assert said.count("\n") == 1
