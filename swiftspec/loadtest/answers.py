"""Answers of OpenAI's API as its clients read them: what they use of an answer is checked, the rest ignored."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field

from swiftspec.files.document import Facts
from swiftspec.files.reading import brief, parse_json, shown

_MOST_TOKENS = 1 << 31
_MOST_NAME_CHARACTERS = 1000

_Count = Annotated[int, Field(ge=0, lt=_MOST_TOKENS, strict=True)]


class Part(Facts):
    """What is used of an answer, or of a part of one."""

    model_config = ConfigDict(extra="ignore")


class _Meta(Part):
    n_ctx: _Count | None = None


class Model(Part):
    id: Annotated[str, Field(min_length=1, max_length=_MOST_NAME_CHARACTERS)]
    root: str | None = None
    max_model_len: _Count | None = None
    meta: _Meta = _Meta()


class Models(Part):
    data: Annotated[tuple[Model, ...], Field(min_length=1)]


class Version(Part):
    version: Annotated[str, Field(max_length=_MOST_NAME_CHARACTERS)]


class TokenIds(Part):
    tokens: tuple[_Count, ...]


class _Usage(Part):
    completion_tokens: _Count


class _Writing(Part):
    text: str
    finish_reason: str | None = None


class WrittenText(Part):
    """A completion in one piece."""

    choices: Annotated[tuple[_Writing, ...], Field(min_length=1)]
    usage: _Usage


class Failed(Part):
    error: Any = None


class _Piece(Part):
    text: str | None = None


class Timings(Part):
    """What llama.cpp's server says of a completion: how long it read the prompt, tokens of it that it had read before,
    and drafted tokens that it accepted.
    """

    prompt_ms: Annotated[float, Field(ge=0)]
    cache_n: _Count = 0
    draft_n_accepted: _Count = 0


class Chunk(Part):
    """An event of a stream."""

    choices: tuple[_Piece, ...] | None = None
    usage: _Usage | None = None
    timings: Timings | None = None
    error: Any = None


Answer = TypeVar("Answer", bound=Part)


def sentence_of(error: object) -> str:
    """What the field `error` of an answer says, in one short line; empty if that is nothing."""
    message = error.get("message") if isinstance(error, Mapping) else error
    return brief(ValueError(message)) if isinstance(message, str) else ""


def read_answer(kind: type[Answer], content: bytes) -> Answer:
    """An answer of a kind. ValueError, one sentence, for anything else."""
    found: Any = parse_json(content)
    if not isinstance(found, Mapping):
        raise ValueError(f"it is {shown(found)}; expected a JSON object")
    return kind.checked(found, source="its content")
