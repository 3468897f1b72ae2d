"""Fields that change what a request is answered, over HTTP: whole and streamed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.models.spec import model_directory
from tests.engine.conftest import two_cores
from tests.server.running import Running, events, running, write_plan

pytestmark = two_cores
PROMPT = "def add(a, b):\n"
GREEDY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
SAID: dict[str, Any] = {**GREEDY, "return_token_ids": True}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}{% if m.name %}={{ m.name }}{% endif %}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}call {{ c.function.name }} {{ c.function.arguments.x }}{% endfor %}"
    "{{ m.tool_call_id or '' }}{% generation %};{% endgeneration %}{% endfor %}"
    "{% if tools %}{{ tools | tojson(separators=(',', ':')) }}{% endif %}{{ extra or '' }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TALK = [{"role": "user", "content": "hello", "name": "me"}]


def answered(server: Running, path: str = "/v1/completions", **fields: Any) -> list[dict[str, Any]]:
    """The choices of an answer."""
    status, said = server.json(path, fields)
    assert status == 200, said
    return list(said["choices"])


def streamed(server: Running, path: str = "/v1/completions", **fields: Any) -> list[list[dict[str, Any]]]:
    """The parts of each choice."""
    with server.ask(path, {**fields, "stream": True}) as answer:
        parts = [part for chunk in events(answer) for part in chunk["choices"]]
    return [[part for part in parts if part["index"] == index] for index in range(fields.get("n", 1))]


def text_of(server: Running, tokens: list[int]) -> str:
    return str(server.json("/detokenize", {"tokens": tokens})[1]["prompt"])


def test_tokens_come_with_their_ids(server: Running) -> None:
    (choice,) = answered(server, **SAID)
    assert len(choice["token_ids"]) == 24
    assert text_of(server, choice["token_ids"]) == choice["text"]
    assert choice["prompt_token_ids"] == server.json("/tokenize", {"prompt": PROMPT})[1]["tokens"]
    (parts,) = streamed(server, **SAID)
    assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
    assert [part.get("prompt_token_ids") for part in parts] == [choice["prompt_token_ids"]] + [None] * (len(parts) - 1)


def test_a_stop_token_ends_the_output_without_its_text_unless_that_is_wanted(server: Running) -> None:
    (plain,) = answered(server, **SAID)
    stop = plain["token_ids"][7]
    expected = plain["token_ids"][: plain["token_ids"].index(stop) + 1]
    for included in (False, True):
        fields = {**SAID, "stop_token_ids": [stop], "include_stop_str_in_output": included}
        (choice,) = answered(server, **fields)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert choice["token_ids"] == expected
        assert choice["text"] == text_of(server, expected if included else expected[:-1])
        (parts,) = streamed(server, **fields)
        assert "".join(part["text"] for part in parts) == choice["text"]


def test_a_stop_text_may_be_part_of_the_output(server: Running) -> None:
    text = answered(server, **GREEDY)[0]["text"]
    stop = text[9:12]
    (choice,) = answered(server, **GREEDY, stop=["never", stop], include_stop_str_in_output=True)
    assert choice["text"] == text[: text.index(stop) + len(stop)]
    assert choice["stop_reason"] == stop


def test_an_output_has_its_least_length(server: Running) -> None:
    (plain,) = answered(server, **SAID)
    stop = plain["token_ids"][3]
    (choice,) = answered(server, **SAID, stop_token_ids=[stop], min_tokens=12)
    assert stop not in choice["token_ids"][:12]
    assert len(choice["token_ids"]) >= 12
    # A stop text does not count before, and the text stays what it was.
    early = plain["text"][2:4]
    (choice,) = answered(server, **SAID, stop=[early], min_tokens=12)
    assert len(choice["token_ids"]) > 12
    assert choice["text"].startswith(plain["text"][:12])


def test_biases_forbid_and_force_tokens(server: Running) -> None:
    (plain,) = answered(server, **SAID)
    first = plain["token_ids"][0]
    assert first not in answered(server, **SAID, logit_bias={str(first): -100})[0]["token_ids"]
    assert set(answered(server, **SAID, logit_bias={"9": 100})[0]["token_ids"]) == {9}


@pytest.mark.parametrize("num", [0, 3])
def test_log_probs_of_the_output_are_those_of_the_scored_text(server: Running, num: int) -> None:
    (choice,) = answered(server, **GREEDY, logprobs=num)
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["text_offset"] == [0, *accumulate(map(len, told["tokens"][:-1]))]
    scored = {"prompt": PROMPT + choice["text"], "max_tokens": 0, "echo": True, "logprobs": num}
    expected = answered(server, **scored)[0]["logprobs"]
    assert told["token_logprobs"] == pytest.approx(expected["token_logprobs"][-24:], abs=1e-4)
    if num:
        for token, own, likeliest in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
            assert likeliest[token] == own == max(likeliest.values())
    (parts,) = streamed(server, **GREEDY, logprobs=num)
    for name, values in told.items():
        pieces = [part["logprobs"][name] for part in parts if part["logprobs"]]
        assert (
            pieces == [None] * len(pieces) if values is None else [each for some in pieces for each in some] == values
        )


def test_a_bias_does_not_change_the_log_prob_that_is_told(server: Running) -> None:
    (plain,) = answered(server, **GREEDY, logprobs=0)
    (biased,) = answered(server, **GREEDY, logprobs=0, logit_bias={"9": 100})
    assert biased["logprobs"]["token_logprobs"][0] < plain["logprobs"]["token_logprobs"][0]


def test_each_of_several_answers_is_what_its_seed_gives_alone(server: Running) -> None:
    drawn = {**SAID, "temperature": 1.2, "seed": 11}
    status, said = server.json("/v1/completions", {**drawn, "n": 3})
    assert status == 200
    choices = said["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert said["seed"] == 11
    assert said["usage"]["completion_tokens"] == 72
    assert said["usage"]["prompt_tokens"] == len(choices[0]["prompt_token_ids"])
    alone = [answered(server, **{**drawn, "seed": 11 + index})[0]["token_ids"] for index in range(3)]
    assert [choice["token_ids"] for choice in choices] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3
    parts = streamed(server, **drawn, n=3)
    assert [[token for part in each for token in part["token_ids"]] for each in parts] == alone
    assert [each[-1]["finish_reason"] for each in parts] == ["length"] * 3
    without = server.json("/v1/completions", {**GREEDY, "temperature": 1.2, "n": 2})[1]
    again = answered(server, **(GREEDY | {"temperature": 1.2, "seed": without["seed"] + 1}))
    assert without["choices"][1]["text"] == again[0]["text"]


def test_more_answers_than_places_are_refused_together(plan_file: Path, tmp_path: Path) -> None:
    with running(plan_file, "--set", "max_running=2,max_waiting=1", log=tmp_path / "log") as small:
        assert small.json("/v1/completions", {**GREEDY, "n": 6})[0] == 429
        small.wait_until_idle(within_s=60.0)
        assert len(answered(small, **GREEDY, n=2)) == 2


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model that has a template and a generation_config.json of its own."""
    folder = tmp_path_factory.mktemp("chatty")
    plan = write_plan(folder)
    directory = model_directory(Plan.load(plan).target.model)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    defaults = {"temperature": 0.7, "top_k": 5, "max_new_tokens": 9, "repetition_penalty": 1.1, "eos_token_id": [2]}
    (directory / "generation_config.json").write_text(json.dumps(defaults))
    with running(plan, "--model-name", "chatty", log=folder / "server.log") as server:
        yield server


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": TALK}, "<user=me>hello;<assistant>"),
        ({"messages": TALK, "add_generation_prompt": False}, "<user=me>hello;"),
        (
            {"messages": [*TALK, {"role": "assistant", "content": "Sure, "}], "continue_final_message": True},
            "<user=me>hello;<assistant>Sure, ",
        ),
        ({"messages": TALK, "chat_template_kwargs": {"extra": "!"}}, "<user=me>hello;!<assistant>"),
        ({"messages": TALK, "tools": [{"a": [1, 2]}]}, '<user=me>hello;[{"a":[1,2]}]<assistant>'),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 7}'}}
                        ],
                    },
                    {"role": "tool", "content": [{"type": "text", "text": "eight"}], "tool_call_id": "c1"},
                ]
            },
            "<assistant>call f 7;<tool>eightc1;<assistant>",
        ),
    ],
)
def test_conversations_reach_the_template_whole(chatty: Running, fields: dict[str, Any], text: str) -> None:
    status, tokenized = chatty.json("/tokenize", fields)
    assert status == 200
    assert tokenized["tokens"] == chatty.json("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
    status, said = chatty.json("/v1/chat/completions", {**fields, "max_tokens": 2, "return_token_ids": True})
    assert status == 200
    assert said["prompt_token_ids"] == tokenized["tokens"]


def test_half_a_character_in_a_call_is_no_fault_of_the_servers(chatty: Running) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\\ud800"}'}}
    talk = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert chatty.json("/v1/chat/completions", {"messages": talk, "max_tokens": 2})[0] == 200


def test_log_probs_of_a_chat(chatty: Running) -> None:
    fields = {"messages": TALK, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    (choice,) = answered(chatty, "/v1/chat/completions", **fields)
    told = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in told) == choice["message"]["content"]
    for each in told:
        assert bytes(each["bytes"]).decode() == each["token"]
        assert each["logprob"] == each["top_logprobs"][0]["logprob"] >= each["top_logprobs"][1]["logprob"]
    (parts,) = streamed(chatty, "/v1/chat/completions", **fields)
    assert [each for part in parts if part["logprobs"] for each in part["logprobs"]["content"]] == told


@pytest.mark.parametrize("arguments", ["[1]", "{", "7"])
def test_a_call_without_an_object_is_refused(chatty: Running, arguments: str) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    status, said = chatty.json("/v1/chat/completions", {"messages": talk})
    assert (status, said["error"]["param"]) == (400, "messages")
    assert "expected a JSON object" in said["error"]["message"]


def test_the_models_generation_config_has_the_defaults(chatty: Running) -> None:
    """Sampled, among five tokens at most, with an end of its own; an explicit value comes first."""
    body: dict[str, Any] = {"prompt": PROMPT, "return_token_ids": True}
    said = chatty.json("/v1/completions", body)[1]
    assert said["usage"]["completion_tokens"] <= 9
    seed = said["seed"]  # it was sampled
    explicit = {**body, "seed": seed, "max_tokens": 9}
    same = answered(chatty, **explicit, temperature=0.7, top_k=5)
    assert said["choices"][0]["token_ids"] == same[0]["token_ids"]
    assert (
        answered(chatty, **explicit, temperature=1.9, top_k=0, ignore_eos=True)[0]["token_ids"] != same[0]["token_ids"]
    )
    (ended,) = answered(chatty, **body, logit_bias={"2": 100}, max_tokens=5)
    assert (ended["token_ids"], ended["finish_reason"]) == ([2], "stop")
    log = chatty.log.read_text(encoding="utf-8")
    assert "requests that do not say otherwise have temperature=0.7, top_k=5, max_new_tokens=9" in log
    assert "repetition_penalty=1.1, which this server cannot apply" in log


def test_defaults_of_sampling_can_be_those_of_openai_and_ends_stay(chatty: Running, tmp_path: Path) -> None:
    plan = chatty.log.with_name("plan.json")
    with running(plan, "--set", "generation_config=false", log=tmp_path / "log") as plain:
        said = plain.json("/v1/completions", {"prompt": PROMPT, "ignore_eos": True})[1]
        assert said["usage"]["completion_tokens"] == 16
        (ended,) = answered(plain, prompt=PROMPT, logit_bias={"2": 100}, max_tokens=5)
        assert ended["finish_reason"] == "stop"
        assert "do not say otherwise" not in plain.log.read_text(encoding="utf-8")


def test_run_ends_where_the_generation_config_says(chatty: Running, tmp_path: Path) -> None:
    """As the server does: the second token of the plain output is made an end."""
    plan, out = chatty.log.with_name("plan.json"), tmp_path / "out.json"
    directory = model_directory(Plan.load(plan).target.model)

    def tokens() -> list[int]:
        command = [sys.executable, "-m", "swiftspec", "run", "--plan", str(plan), "--prompt", PROMPT]
        subprocess.run([*command, "--max-new-tokens", "12", "--json", str(out)], check=True, capture_output=True)
        return list(json.loads(out.read_text(encoding="utf-8"))["prompts"][0]["output_token_ids"])

    plain = tokens()
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [plain[3]]}))
    assert tokens() == plain[: plain.index(plain[3]) + 1]
