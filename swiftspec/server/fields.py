"""Fields of requests that mean nothing here: those that change no output, and values at which others do not.

Everything else that a body has and its class does not is refused by name: a list of what is refused could not be
complete. The names are those of OpenAI's API, vLLM and SGLang, whose clients often send every field with its default.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from swiftspec.files.document import FailFastModel

_MOST_NAME_CHARACTERS = 256  # of what is kept as long as a request, or longer

Json = dict[str, Any]
Name = Annotated[str, Field(max_length=_MOST_NAME_CHARACTERS)]

_ANY: Final = object()  # every value is harmless

_OFF: Final = (False,)
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
