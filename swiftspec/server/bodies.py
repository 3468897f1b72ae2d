"""Bodies of requests to the server, as OpenAI's API and vLLM name their fields.

Fields that nobody here knows are ignored, as the other servers do. Fields that would change the output and are not
supported are refused by name, unless they have the value that changes nothing: load tools send those always.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from swiftspec.files.document import FailFastModel
from swiftspec.server.errors import RequestError

__all__ = [
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "GenerationBody",
    "Message",
    "ScoringBody",
    "TokenizeBody",
    "parse",
    "parse_completion",
]

_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "prompt_logprobs": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
}
_MOST_STOPS = 4
_MOST_LOGPROBS = 5  # as of OpenAI's API
_MOST_STOP_CHARACTERS = 256
_MOST_NAME_CHARACTERS = 256  # of what is kept as long as a request, or longer
_MOST_MESSAGES = 10_000
_MOST_DETOKENIZED = 1 << 17
_MOST_VALUES = 1 << 18  # of a body: parsing takes a second for some millions, and nothing else runs meanwhile
_LEAST_LIMIT_MS = 1e-3

_Count = Annotated[int, Field(ge=1)]
_TokenIds = list[Annotated[int, Field(ge=0, strict=True)]]
_Name = Annotated[str, Field(max_length=_MOST_NAME_CHARACTERS)]
_LimitMs = Annotated[float, Field(ge=_LEAST_LIMIT_MS, allow_inf_nan=False)]


Parsed = TypeVar("Parsed", bound=BaseModel)


class _Body(FailFastModel):
    """A body; only a list's first wrong item is found: describing a million takes half a minute, and a gigabyte."""

    model_config = ConfigDict(extra="ignore")


class StreamOptions(_Body):
    """What a stream tells beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ServiceLevel(_Body):
    """Latency limits of a request, in milliseconds: they are counted as met or missed."""

    ttft_ms: _LimitMs | None = None
    tpot_ms: _LimitMs | None = None


class GenerationBody(_Body):
    """What completions and chat completions have in common."""

    harmless: ClassVar[Mapping[str, tuple[Any, ...]]] = _HARMLESS  # values of fields that are not supported

    model: _Name | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    seed: int | None = None
    stop: Annotated[tuple[str, ...], Field(max_length=_MOST_STOPS)] = ()
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    ignore_eos: bool = False
    user: _Name = ""
    slo: ServiceLevel | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for field, harmless in cls.harmless.items():
                if data.get(field) is not None and data[field] not in harmless:
                    raise ValueError(f"{field}: not supported; expected {harmless[0]!r}, or nothing")
            # null is as good as no field
            return {field: value for field, value in data.items() if value is not None}
        return data

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _short(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if any(not 0 < len(text) <= _MOST_STOP_CHARACTERS for text in stop):
            raise ValueError(f"texts of 1 to {_MOST_STOP_CHARACTERS} characters are possible")
        return stop

    @property
    def most_tokens(self) -> int | None:
        """Output tokens at most; None if the request does not say."""
        return self.max_tokens

    @property
    def given_seed(self) -> int | None:
        """The seed as a number from 0 to 2**64 - 1; None if the request does not say."""
        return None if self.seed is None else self.seed % 2**64


class CompletionBody(GenerationBody):
    """Body of `/v1/completions`."""

    prompt: str | _TokenIds | list[str] | list[_TokenIds]

    @property
    def one_prompt(self) -> str | tuple[int, ...]:
        """The prompt: a text, or token ids. RequestError if there are several."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise RequestError(f"prompt has {len(prompt)} texts; expected one per request", param="prompt")
            (prompt,) = prompt
        return prompt if isinstance(prompt, str) else tuple(prompt)


class ScoringBody(CompletionBody):
    """Body of `/v1/completions` that asks for the prompt's log-probs: `echo`, with the next token at most as output."""

    harmless: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **{field: values for field, values in _HARMLESS.items() if field not in ("echo", "logprobs")},
        "stop": ([], ""),
        "stream": (False,),
    }

    max_tokens: Annotated[int, Field(ge=0, le=1)] = 0
    logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS, strict=True)]

    @model_validator(mode="after")
    def _greedy(self) -> Self:
        if self.max_tokens and self.temperature:
            raise ValueError(f"temperature is {self.temperature}; expected 0 with echo, for the likeliest token")
        return self

    @property
    def most_tokens(self) -> int:
        return self.max_tokens


class _TextPart(_Body):
    type: Literal["text"]
    text: str


class Message(_Body):
    """A message of a conversation; its text may come in parts."""

    role: _Name
    content: str | tuple[_TextPart, ...] = ""
    name: _Name | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _nothing_is_empty(cls, content: Any) -> Any:
        return "" if content is None else content

    @property
    def text(self) -> str:
        """The whole text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=_MOST_MESSAGES)]
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeBody(_Body):
    """Body of `/tokenize`: a text, or a conversation."""

    prompt: str | None = None
    messages: Annotated[tuple[Message, ...], Field(max_length=_MOST_MESSAGES)] | None = None

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: expected either prompt or messages")
        return self


class DetokenizeBody(_Body):
    """Body of `/detokenize`."""

    tokens: Annotated[_TokenIds, Field(max_length=_MOST_DETOKENIZED)]


class _EchoFields(_Body):
    echo: Any = False
    max_tokens: Any = None


def parse_completion(content: bytes) -> CompletionBody:
    """The body of a completion: a `ScoringBody` if it wants the prompt back, and at most one token after it."""
    if b"echo" not in content:  # as in most, which are parsed once
        return parse(CompletionBody, content)
    wanted = parse(_EchoFields, content)
    is_scoring = wanted.echo is True and wanted.max_tokens in (0, 1)
    return parse(ScoringBody if is_scoring else CompletionBody, content)


def parse(kind: type[Parsed], content: bytes) -> Parsed:
    """A body from its JSON. RequestError naming the field."""
    if (count := sum(map(content.count, (b",", b"{", b"[")))) > _MOST_VALUES:
        raise RequestError(f"the body has {count} commas and brackets; expected at most {_MOST_VALUES}", status=413)
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not JSON ({first['msg'].removeprefix('Invalid JSON: ')})")
    reason = first["msg"].removeprefix("Value error, ")
    field = ".".join(str(part) for part in first["loc"][:2])
    if not field:
        field, _, reason = reason.rpartition(": ")
    return RequestError(f"{field}: {reason}" if field else reason, param=field or None)
