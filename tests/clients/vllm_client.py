"""The `openai` package asks this server and a real vLLM the same: `python vllm_client.py OURS VLLM`.

Both serve one model in fp32, greedily. The exit code is 1 if they differ. Only the `openai` package is needed, which
vLLM's environment has.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from openai import BadRequestError, OpenAI

MOST_ROUNDING = 2e-3  # of log-probs: each adds up in an order of its own
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef "
TALK = [{"role": "user", "content": "hello", "name": "me"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = [
    *TALK,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
]
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}},
}
Fields = Mapping[str, Any]
Answer = dict[str, Any]
OWN = {  # of the client itself; everything else goes into `extra_body`
    *("prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "n"),
    *("logit_bias", "logprobs", "top_logprobs", "echo", "stream", "stream_options", "tools", "tool_choice"),
}


def main(ours: str, theirs: str) -> int:
    clients = [OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in (ours, theirs)]
    plain = ask(clients[1], completion())
    apart = 0
    for name, fields in cases(plain["choices"][0]["token_ids"], plain["choices"][0]["text"]).items():
        answers = [ask(client, fields) for client in clients]
        why = difference(*answers)
        apart += bool(why)
        sys.stdout.write(f"| {name} | {why or 'alike'} |\n")
    return 1 if apart else 0


def completion(**fields: Any) -> Fields:
    usual = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    return usual | fields


def chat(**fields: Any) -> Fields:
    usual = {"messages": TALK, "max_tokens": 16, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    return usual | fields


def cases(tokens: list[int], text: str) -> dict[str, Fields]:
    """Requests by what they are about. tokens, text: what the model says without any of it."""
    stop, late = text[4:7], tokens[9]
    biased = {str(tokens[0]): -100, str(tokens[3]): 5}
    continued = [*TALK, {"role": "assistant", "content": "Sure, "}]
    return {
        "plain": completion(),
        "ends of generation_config.json": completion(ignore_eos=False, max_tokens=64),
        "sampling of generation_config.json": {"prompt": PROMPT, "max_tokens": 32, "ignore_eos": True, "seed": 1},
        "stream": completion(stream=True, stream_options={"include_usage": True}),
        "stop": completion(stop=[stop]),
        "stop, stream": completion(stop=[stop], stream=True),
        "include_stop_str_in_output": completion(stop=[stop], include_stop_str_in_output=True),
        "stop_token_ids": completion(stop_token_ids=[late]),
        "stop_token_ids, included": completion(stop_token_ids=[late], include_stop_str_in_output=True),
        "min_tokens with stop_token_ids": completion(stop_token_ids=[late], min_tokens=20),
        "min_tokens with stop": completion(stop=[stop], min_tokens=20),
        "min_tokens with ends": completion(ignore_eos=False, min_tokens=30, max_tokens=64),
        "logit_bias": completion(logit_bias=biased),
        "logprobs 0": completion(logprobs=0),
        "logprobs 3": completion(logprobs=3),
        "logprobs 3, stream": completion(logprobs=3, stream=True),
        "logprobs with logit_bias": completion(logprobs=2, logit_bias=biased),
        "echo with logprobs": {"prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0},
        "top_k 1": completion(temperature=1.0, top_k=1, seed=1),
        "min_p 1": completion(temperature=1.0, min_p=1.0, seed=1),
        "add_special_tokens": completion(add_special_tokens=False),
        "max_tokens without more": {"prompt": PROMPT, "temperature": 0, "ignore_eos": True},
        "chat": chat(),
        "chat, stream": chat(stream=True),
        "chat, max_completion_tokens": chat(max_completion_tokens=5),
        "chat, logprobs": chat(logprobs=True, top_logprobs=2),
        "chat, logprobs, stream": chat(logprobs=True, top_logprobs=2, stream=True),
        "chat, add_generation_prompt": chat(add_generation_prompt=False),
        "chat, continue_final_message": chat(
            messages=continued, continue_final_message=True, add_generation_prompt=False
        ),
        "chat, tool calls": chat(messages=CALLED),
        "chat, tools": chat(tools=[TOOL], tool_choice="none"),
        "chat, documents": chat(documents=[{"title": "a", "text": "b"}]),
        "chat, chat_template_kwargs": chat(chat_template_kwargs={"extra": "x = "}),
        "chat, stop_token_ids": chat(stop_token_ids=[late]),
        "top_logprobs without logprobs": chat(top_logprobs=2),
        "both continue_final_message and add_generation_prompt": chat(
            messages=continued, continue_final_message=True, add_generation_prompt=True
        ),
        "min_tokens above max_tokens": completion(min_tokens=40),
        "an unknown token in logit_bias": completion(logit_bias={"99999": 1}),
        "an unknown token in stop_token_ids": completion(stop_token_ids=[99999]),
    }


def ask(client: OpenAI, fields: Fields) -> Answer:
    """An answer as a dictionary; a refused one has the status only."""
    model = client.models.list().data[0].id
    own = {name: value for name, value in fields.items() if name in OWN}
    more = {name: value for name, value in fields.items() if name not in OWN}
    create: Callable[..., Any] = client.completions.create
    if "messages" in fields:
        create = client.chat.completions.create
    try:
        answer = create(model=model, extra_body=more, **own)
        if fields.get("stream"):
            return joined([part.model_dump() for part in answer])
        return dict(answer.model_dump())
    except BadRequestError as error:
        return {"refused": error.status_code}


def joined(parts: list[Answer]) -> Answer:
    """The parts of a stream as one answer."""
    found = [choice for part in parts for choice in part["choices"]]
    text = "".join(each.get("text") or (each.get("delta") or {}).get("content") or "" for each in found)
    whole: Answer = {"text": text, "finish_reason": found[-1]["finish_reason"]}
    whole["stop_reason"] = found[-1].get("stop_reason")
    firsts = [each.get("prompt_token_ids") for each in (*found, *parts)]
    whole["prompt_token_ids"] = next((tokens for tokens in firsts if tokens), None)
    whole["token_ids"] = [token for each in found for token in each.get("token_ids") or ()]
    told = [each["logprobs"] for each in found if each.get("logprobs")]
    if told:
        whole["logprobs"] = {
            name: None if told[0][name] is None else [each for some in told for each in some[name]]
            for name in ("content", "tokens", "token_logprobs", "top_logprobs", "text_offset")
            if name in told[0]
        }
    usages = [part["usage"] for part in parts if part.get("usage")]
    return {"choices": [whole], "usage": usages[-1] if usages else None}


def difference(ours: Answer, theirs: Answer) -> str:
    """How two answers differ; nothing if they say the same."""
    if "refused" in ours or "refused" in theirs:
        return "" if ours.get("refused") == theirs.get("refused") else f"{ours.get('refused')}, {theirs.get('refused')}"
    # Of a chat the prompt's ids stand beside the choices.
    found = [{**whole, **whole["choices"][0]} for whole in (ours, theirs)]
    for name in ("text", "message", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids"):
        if not all(name in each for each in found):
            continue  # a stream, or what vLLM does not tell of a refusal
        values = [each[name]["content"] if name == "message" else each[name] for each in found]
        if values[0] != values[1]:
            return f"{name}: {values[0]!r}, {values[1]!r}"
    told = [each.get("logprobs") or {} for each in found]
    if any(
        "top_logprobs" in each and each["top_logprobs"] is None for each in told
    ):  # of 0, vLLM repeats the token's own
        told = [each | {"top_logprobs": None} for each in told]
    scores = [*map(numbers, told)]
    if len(scores[0]) != len(scores[1]):
        return f"{len(scores[0])} log-probs, {len(scores[1])}"
    worst = max((abs(one - other) for one, other in zip(*scores, strict=True)), default=0.0)
    if worst > MOST_ROUNDING:
        return f"log-probs differ by {worst:.2g}"
    usages = [answer.get("usage") and answer["usage"]["completion_tokens"] for answer in (ours, theirs)]
    return "" if None in usages or usages[0] == usages[1] else f"tokens counted: {usages[0]}, {usages[1]}"


def numbers(told: Any) -> list[float]:
    """Every log-prob of an answer, in its order; likeliest tokens by their log-probs."""
    if not told:
        return []
    if told.get("content"):
        return [
            score
            for each in told["content"]
            for score in (each["logprob"], *(other["logprob"] for other in each["top_logprobs"]))
        ]
    own = [each for each in told["token_logprobs"] if each is not None]
    return own + [score for each in told["top_logprobs"] or () for score in sorted((each or {}).values())]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
