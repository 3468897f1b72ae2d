"""Bodies of requests to the server, as OpenAI's API and vLLM name their fields."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from swiftspec.server.conversation import Body, Conversation, Messages, Name
from swiftspec.server.errors import RequestError

_MOST_STOPS = 4
_MOST_LOGPROBS = 20  # as of OpenAI's chats and vLLM
_MOST_CHOICES = 128
_MOST_BIAS, _MOST_BIASES = 100, 1024
_MOST_STOP_CHARACTERS = 256
_MOST_DETOKENIZED = 1 << 17
_MOST_VALUES = 1 << 18  # of a body: parsing takes a second for some millions, and nothing else runs meanwhile
_SEED_BITS = 48
_LEAST_LIMIT_MS = 1e-3

_Count = Annotated[int, Field(ge=1)]
_TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_TokenIds = list[Annotated[_TokenId, Field(strict=True)]]
_Share = Annotated[float, Field(gt=0, le=1)]
_Bias = Annotated[float, Field(ge=-_MOST_BIAS, le=_MOST_BIAS)]
_LimitMs = Annotated[float, Field(ge=_LEAST_LIMIT_MS, allow_inf_nan=False)]


Parsed = TypeVar("Parsed", bound=BaseModel)


class StreamOptions(Body):
    """What a stream tells beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ServiceLevel(Body):
    """Latency limits of a request, in milliseconds: they are counted as met or missed."""

    ttft_ms: _LimitMs | None = None
    tpot_ms: _LimitMs | None = None


class GenerationBody(Body):
    """What completions and chat completions have in common."""

    model: Name | None = None
    max_tokens: _Count | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    logit_bias: Annotated[dict[_TokenId, _Bias], Field(max_length=_MOST_BIASES)] = Field(default_factory=dict)
    seed: int | None = None
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] = 1
    stop: Annotated[tuple[str, ...], Field(max_length=_MOST_STOPS)] = ()
    stop_token_ids: _TokenIds = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    user: Name = ""
    slo: ServiceLevel | None = None

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
    def num_log_probs(self) -> int | None:
        """Likeliest tokens to tell beside each of the output; None if no log-probs are wanted."""
        return None

    def sampling(self, defaults: Mapping[str, float]) -> dict[str, Any]:
        """How its tokens are drawn, with the model's defaults or OpenAI's for what it does not say."""

        def chosen(name: str, usual: float) -> Any:
            given = getattr(self, name)
            return defaults.get(name, usual) if given is None else given

        return {
            "temperature": chosen("temperature", 1.0),
            "top_p": chosen("top_p", 1.0),
            "top_k": max(0, int(chosen("top_k", 0))),
            "min_p": chosen("min_p", 0.0),
            "logit_bias": self.logit_bias,
            "num_log_probs": self.num_log_probs,
            # Without one a random one is drawn, of as many bits as are exact in every client's reader of JSON.
            "seed": secrets.randbits(_SEED_BITS) if self.seed is None else self.seed % 2**64,
        }


class CompletionBody(GenerationBody):
    """Body of `/v1/completions`."""

    prompt: str | _TokenIds | list[str] | list[_TokenIds]
    add_special_tokens: bool = True
    logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS, strict=True)] | None = None

    @property
    def num_log_probs(self) -> int | None:
        return self.logprobs

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

    echo: bool
    max_tokens: Annotated[int, Field(ge=0, le=1)] = 0
    logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS, strict=True)]

    @model_validator(mode="after")
    def _only_scored(self) -> Self:
        fresh = type(self).model_construct()
        for field in ("n", "stop", "stop_token_ids", "min_tokens", "logit_bias", "stream", "return_token_ids"):
            if (given := getattr(self, field)) != getattr(fresh, field):
                raise ValueError(f"{field}: {given!r} is not supported with echo; expected nothing")
        if self.max_tokens and self.temperature != 0:
            raise ValueError(f"temperature is {self.temperature}; expected 0 with echo, for the likeliest token")
        return self


class ChatBody(GenerationBody, Conversation):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[Messages, Field(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS)] = 0

    @model_validator(mode="after")
    def _told(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs: {self.top_logprobs} without logprobs; expected logprobs to be true")
        return self

    @property
    def num_log_probs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeBody(Conversation):
    """Body of `/tokenize`: a text, or a conversation."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: expected either prompt or messages")
        return self


class DetokenizeBody(Body):
    """Body of `/detokenize`."""

    model: Name | None = None
    tokens: Annotated[_TokenIds, Field(max_length=_MOST_DETOKENIZED)]


class _EchoFields(BaseModel):
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
        field, _, reason = reason.partition(": ")
    return RequestError(f"{field}: {reason}" if field else reason, param=field or None)
