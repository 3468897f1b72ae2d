"""Bodies that know their fields, and conversations: messages as clients send them, and what a template is told."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from swiftspec.files.document import FailFastModel
from swiftspec.files.reading import parse_foreign_json, shown

_MOST_MESSAGES = 10_000
_MOST_NAME_CHARACTERS = 256  # of what is kept as long as a request, or longer

Json = dict[str, Any]
Name = Annotated[str, Field(max_length=_MOST_NAME_CHARACTERS)]

_ANY: Final = object()  # every value is harmless

_OFF: Final = (False,)
# Fields of requests that mean nothing here: those that change no output, and values at which others do not. Everything
# else that a body has and its class does not is refused by name: a list of what is refused could not be complete. The
# names are those of OpenAI's API, vLLM and SGLang, whose clients often send every field with its default.
_HARMLESS: Final[Mapping[str, tuple[Any, ...]]] = {
    # Notes of the client's, hints that only change speed, and who is asked where several servers could answer.
    **dict.fromkeys(
        (
            *("metadata", "store", "service_tier", "safety_identifier", "custom_labels", "request_id", "session_id"),
            *("rid", "extra_key", "cache_salt", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
            *("prediction", "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank"),
            *("disagg_prefill_dp_rank", "data_parallel_rank"),
        ),
        (_ANY,),
    ),
    # About images, and about answers that are not asked for.
    **dict.fromkeys(
        (
            *("mm_payload", "return_mm_kwargs", "return_token_offsets", "truncation_side", "sampling_logprobs_mode"),
            *("return_flat_raw_top_logprobs_b64", "routed_experts_prompt_start", "routed_experts_start_len"),
            "include_obfuscation",  # of streams: nothing is padded
        ),
        (_ANY,),
    ),
    # Calls and reasoning are not parsed out of the answer: whether they would be told apart changes nothing.
    **dict.fromkeys(("parallel_tool_calls", "include_reasoning", "separate_reasoning", "stream_reasoning"), (_ANY,)),
    **dict.fromkeys(
        (
            *("echo", "logprobs", "no_stop_trim", "use_audio_in_video", "use_beam_search", "watermarking"),
            *("return_tokens_as_token_ids", "return_prompt_text", "return_hidden_states", "return_routed_experts"),
            *("return_cached_tokens_details", "return_spec_tokens_details", "return_prompt_token_ids"),
            *("return_meta_info", "return_input_ids_in_sglext", "return_output_ids_in_sglext"),
            *("return_sampling_mask", "return_flat_raw_output_top_logprobs", "return_token_strs"),
        ),
        _OFF,
    ),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "priority"), (0,)),
    **dict.fromkeys(("best_of", "length_penalty", "repetition_penalty"), (1,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    **dict.fromkeys(("bad_words", "functions", "tools", "documents", "annotations"), ([],)),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "stream_interval": (1,),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "verbosity": ("medium",),
}


class Body(FailFastModel):
    """A body; only a list's first wrong item is found: describing a million takes half a minute, and a gigabyte."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return _supported(data, cls.model_fields) if isinstance(data, dict) else data


def _supported(data: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a body's class knows; a null is as good as no field. ValueError, `field: why`, for any other."""
    for field in data.keys() - known.keys():
        if data[field] is None or (values := _HARMLESS.get(field, ())) == (_ANY,):
            continue
        if not any(_equal(data[field], value) for value in values):
            expected = f"{values[0]!r}, or nothing" if values else "nothing"
            raise ValueError(f"{field}: not supported; expected {expected}")
    return {field: value for field, value in data.items() if field in known and value is not None}


def _equal(value: Any, harmless: Any) -> bool:
    """Whether a value is the harmless one; 1 is not true, and 1.0 is 1."""
    return isinstance(value, bool) == isinstance(harmless, bool) and bool(value == harmless)


class _TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    """A message of a conversation; its text may come in parts."""

    role: Name
    content: str | tuple[_TextPart, ...] = ""
    name: Name | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[Json, ...] = ()
    tool_call_id: Name | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") != "text":
                raise ValueError(f"content has a part of type {shown(part.get('type'))}; expected text")
        return content

    def for_template(self) -> Json:
        """The message as templates expect it: one text, arguments of calls as an object, reasoning by all its names."""
        said: Json = {"role": self.role, "content": self.content}
        if not isinstance(self.content, str):
            said["content"] = "".join(part.text for part in self.content)
        if (reasoning := self.reasoning or self.reasoning_content) is not None:
            said |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
        if self.tool_calls:
            said["tool_calls"] = [_with_arguments(call) for call in self.tool_calls]
        return said | {name: value for name in ("name", "tool_call_id") if (value := getattr(self, name)) is not None}


def _with_arguments(call: Json) -> Json:
    """A call whose arguments, a JSON text in OpenAI's API, are an object. ValueError if they are none."""
    function = call.get("function")
    if not isinstance(function, dict):
        raise ValueError(f"messages: tool_calls has {shown(call)}; expected a function in each")
    arguments = function.get("arguments") or {}
    with suppress(ValueError):
        arguments = parse_foreign_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError(f"messages: arguments of a tool call are {shown(arguments)}; expected a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


class Conversation(Body):
    """What a chat template makes a text of."""

    tools: tuple[Json, ...] = ()
    documents: tuple[Json, ...] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template_kwargs: Json = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("add_generation_prompt: true with continue_final_message; expected one of both")
        return self

    def conversation(self, messages: Iterable[Message]) -> Json:
        """Arguments of `ChatTemplate.render`. ValueError if a message is not possible."""
        ends = self.continue_final_message
        return {
            "messages": [message.for_template() for message in messages],
            "tools": list(self.tools) or None,
            "documents": list(self.documents) or None,
            "add_generation_prompt": (not ends) if self.add_generation_prompt is None else self.add_generation_prompt,
            "continue_final_message": ends,
            "arguments": self.chat_template_kwargs,
        }


Messages = Annotated[tuple[Message, ...], Field(max_length=_MOST_MESSAGES)]
