"""Every field that OpenAI's client, vLLM and SGLang define is supported, harmless, or refused by its name.

Their names and defaults are those of the releases that `fields_of_others.json` names, read from the files it names.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.server.bodies import ChatBody, CompletionBody, parse, parse_completion
from swiftspec.server.conversation import Body
from swiftspec.server.errors import RequestError

OTHERS = json.loads(Path(__file__).with_name("fields_of_others.json").read_text(encoding="utf-8"))["paths"]
USUAL: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}
CASES = [
    (path, server, field, default)
    for path, servers in OTHERS.items()
    for server, fields in servers.items()
    for field, default in fields.items()
]
# What changes nothing whatever its value: notes, hints, places, and answers that are not asked for.
NOTHING = {
    *("metadata", "store", "service_tier", "safety_identifier", "custom_labels", "request_id", "session_id", "rid"),
    *("extra_key", "cache_salt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank"),
    *("data_parallel_rank", "mm_payload", "return_mm_kwargs", "return_token_offsets", "truncation_side"),
    *("sampling_logprobs_mode", "return_flat_raw_top_logprobs_b64", "routed_experts_prompt_start"),
    *("routed_experts_start_len", "parallel_tool_calls", "include_reasoning", "separate_reasoning", "stream_reasoning"),
}


def parsed(path: str, body: dict[str, Any]) -> Body:
    content = json.dumps(USUAL[path] | body).encode()
    return parse(ChatBody, content) if "chat" in path else parse_completion(content)


@pytest.mark.parametrize(("path", "server"), [(path, server) for path in OTHERS for server in OTHERS[path]])
def test_a_client_that_sends_every_default_is_served(path: str, server: str) -> None:
    defaults = OTHERS[path][server]
    parsed(path, defaults)
    parsed(path, dict.fromkeys(defaults))  # and null is as good as no field


@pytest.mark.parametrize(("path", "server", "field", "default"), CASES)
def test_no_field_of_another_server_is_ignored(path: str, server: str, field: str, default: Any) -> None:
    kind = ChatBody if "chat" in path else CompletionBody
    if field in kind.model_fields or field in NOTHING:
        return  # supported, as other tests show
    for value in ({"a": [1]}, "another value", 0.123):
        if value == default:
            continue
        with pytest.raises(RequestError) as refused:
            parsed(path, {field: value})
        assert (refused.value.status, refused.value.param) == (400, field)
        assert str(refused.value).startswith(f"{field}: not supported; expected ")


@pytest.mark.parametrize("field", ["unheard_of", "Temperature", "max_token", "guided_json", "no_such\u00e4"])
@pytest.mark.parametrize("path", USUAL)
def test_no_field_that_nobody_knows_is_ignored(path: str, field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: not supported; expected nothing$") as refused:
        parsed(path, {field: 1})
    assert refused.value.param == field
    parsed(path, {field: None})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"stream_options": {"include_use": True}}, "stream_options: include_use: not supported; expected nothing"),
        ({"slo": {"ttft": 5}}, "slo: ttft: not supported; expected nothing"),
        ({"messages": [{"role": "user", "content": "a", "weight": 1}]}, "messages.0: weight: not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0: content has a part of type 'image_url'; expected text",
        ),
        ({"n": 1, "logprobs": False, "top_logprobs": 2}, "top_logprobs: 2 without logprobs; expected logprobs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt: true with continue_final_message; expected one of both",
        ),
    ],
)
def test_fields_inside_of_fields_are_named_too(body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        parsed("/v1/chat/completions", body)
    assert str(refused.value).startswith(sentence)


def test_what_a_client_has_got_from_another_server_can_be_sent_back() -> None:
    """A message as the `openai` package writes it, with all that it has no value for."""
    answer: dict[str, Any] = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None}
    parsed("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}, answer]})
