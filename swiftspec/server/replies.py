"""Answers in OpenAI's formats: completions and chat completions, whole or as server-sent events."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from swiftspec.engine.api import Finish, ScoredToken

__all__ = ["DONE", "Reply", "Usage", "event"]

DONE = b"data: [DONE]\n\n"
_MARK = "\0 text \0"  # in no name of a model


def event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + _compact(data).encode() + b"\n\n"


def _compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _likeliest(token: ScoredToken) -> dict[str, float | None]:
    """Log-probs of a token's candidates and of itself, by text: of several with one text that of the likeliest."""
    found: dict[str, float | None] = {}
    for text, log_prob in (*token.candidates, (token.text, token.log_prob)):
        found.setdefault(text, log_prob)
    return found


@dataclass(slots=True)
class Usage:
    """Tokens of a request so far."""

    prompt_tokens: int
    completion_tokens: int = 0

    def as_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one request, whose parts have one id.

    Parameters
    ----------
    request_id : str
    model : str
        Name of the served model.
    is_chat : bool
        The format of chat completions.
    seed : int or None
        By which the answer is sampled, told with its end; None if it is greedy.
    """

    request_id: str
    model: str
    is_chat: bool
    seed: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, *, finish: Finish, usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        said = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        return self._wrapped(said, finish, "") | {"usage": usage.as_json()}

    def scored(self, tokens: Sequence[ScoredToken], *, usage: Usage) -> dict[str, Any]:
        """The prompt as an answer, with the log-probs of its tokens; the first one follows nothing, and has none."""
        texts = [token.text for token in tokens]
        likeliest = [_likeliest(token) if token.candidates else None for token in tokens]
        logprobs = {
            "tokens": texts,
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": likeliest if any(likeliest) else None,
            "text_offset": [0, *accumulate(map(len, texts[:-1]))],
        }
        said = {"text": "".join(texts), "logprobs": logprobs}
        return self._wrapped(said, "length", "") | {"usage": usage.as_json()}

    def opening(self, usage: Usage | None) -> bytes:
        """What a stream begins with: of a chat, whose turn it is."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None, usage) if self.is_chat else b""

    def piece(self, text: str, *, finish: Finish | None, usage: Usage | None) -> bytes:
        """A part of a stream, with the reason if it is the last. usage: if the client wants it with every part."""
        if finish is None and usage is None:
            before, after = self._around
            return before + _compact(text).encode() + after
        said: dict[str, Any] = {"text": text}
        if self.is_chat:
            said = {"delta": {"content": text} if text or finish is None else {}}
        return self._chunk(said, finish, usage)

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """What stands before and after the text of most parts, of which there may be thousands a second."""
        said = {"delta": {"content": _MARK}} if self.is_chat else {"text": _MARK}
        before, _, after = self._chunk(said, None, None).partition(_compact(_MARK).encode())
        return before, after

    def closing(self, usage: Usage) -> bytes:
        """The last part of a stream whose client wants to know the usage."""
        return event(self._head(".chunk") | {"choices": [], "usage": usage.as_json()})

    def _chunk(self, said: Mapping[str, Any], finish: Finish | None, usage: Usage | None) -> bytes:
        told = {} if usage is None else {"usage": usage.as_json()}
        return event(self._wrapped(said, finish, ".chunk") | told)

    def _wrapped(self, said: Mapping[str, Any], finish: Finish | None, part: str) -> dict[str, Any]:
        choice = {"index": 0, "logprobs": None, **said, "finish_reason": finish}
        seed = {} if finish is None or self.seed is None else {"seed": self.seed}
        return self._head(part) | {"choices": [choice]} | seed

    def _head(self, part: str) -> dict[str, Any]:
        kind = f"chat.completion{part}" if self.is_chat else "text_completion"
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {"id": f"{prefix}-{self.request_id}", "object": kind, "created": self.created, "model": self.model}
