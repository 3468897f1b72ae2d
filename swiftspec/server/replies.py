"""Answers in OpenAI's formats: completions and chat completions, whole or as server-sent events."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from swiftspec.engine.scoring import ScoredToken
from swiftspec.server.answer import Answer, Piece, Usage

DONE = b"data: [DONE]\n\n"
_MARK = "\0 text \0"  # in no name of a model


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + _compact(data).encode() + b"\n\n"


def _compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _said(token: ScoredToken | tuple[str, float]) -> dict[str, Any]:
    text, log_prob = (token.text, token.log_prob) if isinstance(token, ScoredToken) else token
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def _likeliest(token: ScoredToken) -> dict[str, float | None]:
    """Log-probs of a token's candidates and of itself, by text: of several with one text that of the likeliest."""
    found: dict[str, float | None] = {}
    for text, log_prob in (*token.candidates, (token.text, token.log_prob)):
        found.setdefault(text, log_prob)
    return found


def _log_probs(tokens: Sequence[ScoredToken], *, offset: int, is_chat: bool) -> dict[str, Any]:
    """Log-probs of tokens, of whose text the first begins at an offset."""
    if is_chat:
        return {"content": [{**_said(each), "top_logprobs": [*map(_said, each.candidates)]} for each in tokens]}
    likeliest = [_likeliest(token) if token.candidates else None for token in tokens]
    texts = [token.text for token in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": likeliest if any(likeliest) else None,
        "text_offset": [*accumulate(map(len, texts[:-1]), initial=offset)],
    }


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one request, whose parts have one id. seed: told with its end; None if it is greedy."""

    request_id: str
    model: str
    is_chat: bool
    seed: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Answer], pieces: Sequence[Piece]) -> dict[str, Any]:
        """The answer in one piece; of each choice what it said."""
        told = []
        for choice, piece in zip(choices, pieces, strict=True):
            said = {"message": {"role": "assistant", "content": piece.text}} if self.is_chat else {"text": piece.text}
            told.append(self._choice(choice, said, piece))
        return self._wrapped(told, "") | self._prompt(choices[0]) | {"usage": Usage.of(choices).as_json()}

    def scored(self, tokens: Sequence[ScoredToken], *, usage: Usage) -> dict[str, Any]:
        """The prompt as an answer, with the log-probs of its tokens; the first one follows nothing, and has none."""
        text = "".join(token.text for token in tokens)
        choice = {"index": 0, "text": text, "logprobs": _log_probs(tokens, offset=0, is_chat=False)}
        return self._wrapped([choice | {"finish_reason": "length"}], "") | {"usage": usage.as_json()}

    def opening(self, choices: Sequence[Answer], usage: Usage | None) -> bytes:
        """What a stream begins with: of a chat, whose turn it is."""
        if not self.is_chat:
            return b""
        said = {"logprobs": None, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return b"".join(self._event([{"index": choice.index, **said}], usage) for choice in choices)

    def piece(self, choice: Answer, piece: Piece, usage: Usage | None) -> bytes:
        """A part of a stream, with the reason if it is the last. usage: if the client wants it with every part."""
        is_plain = piece.finish is None and usage is None and not choice.index
        if is_plain and not (piece.scored or choice.body.return_token_ids):
            before, after = self._around
            return before + _compact(piece.text).encode() + after
        said: dict[str, Any] = {"text": piece.text}
        if self.is_chat:
            said = {"delta": {"content": piece.text} if piece.text or piece.finish is None else {}}
        prompt = self._prompt(choice) if piece.is_first else {}
        return self._event([self._choice(choice, said, piece)], usage, is_last=piece.finish is not None, **prompt)

    @cached_property
    def _around(self) -> tuple[bytes, bytes]:
        """What stands before and after the text of most parts, of which there may be thousands a second."""
        said = {"delta": {"content": _MARK}} if self.is_chat else {"text": _MARK}
        chunk = self._event([{"index": 0, "logprobs": None, **said, "finish_reason": None}], None)
        before, _, after = chunk.partition(_compact(_MARK).encode())
        return before, after

    def closing(self, usage: Usage) -> bytes:
        """The last part of a stream whose client wants to know the usage."""
        return self._event([], usage)

    def _choice(self, choice: Answer, said: Mapping[str, Any], piece: Piece) -> dict[str, Any]:
        scored = _log_probs(piece.scored, offset=piece.offset, is_chat=self.is_chat) if piece.scored else None
        told = {"index": choice.index, "logprobs": scored, **said, "finish_reason": piece.finish}
        if piece.finish == "stop":
            told["stop_reason"] = choice.stop_reason
        if choice.body.return_token_ids:
            told["token_ids"] = piece.token_ids
            if piece.is_first and not self.is_chat:
                told["prompt_token_ids"] = choice.prompt
        return told

    def _prompt(self, choice: Answer) -> dict[str, Any]:
        """Ids of a chat's prompt, which vLLM tells beside the choices."""
        return {"prompt_token_ids": choice.prompt} if self.is_chat and choice.body.return_token_ids else {}

    def _event(
        self, choices: Sequence[Mapping[str, Any]], usage: Usage | None, *, is_last: bool = False, **more: Any
    ) -> bytes:
        told = {} if usage is None else {"usage": usage.as_json()}
        return event(self._wrapped(choices, ".chunk", is_last=is_last) | more | told)

    def _wrapped(self, choices: Sequence[Mapping[str, Any]], part: str, *, is_last: bool = True) -> dict[str, Any]:
        prefix, kind = ("chatcmpl", f"chat.completion{part}") if self.is_chat else ("cmpl", "text_completion")
        head = {"id": f"{prefix}-{self.request_id}", "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices} | ({"seed": self.seed} if is_last and self.seed is not None else {})
