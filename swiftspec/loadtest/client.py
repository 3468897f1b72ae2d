"""A client of OpenAI's API that notes when every chunk of a stream comes. Thread-safe; every call has a connection."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from swiftspec.artifacts.timeline import Timeline
from swiftspec.artifacts.timelines import timelines_from_json
from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.reading import brief, parse_json

__all__ = ["Completion", "ServerClient", "Streamed"]

_CONNECTS_WITHIN_S = 10.0
_MOST_ERROR_BYTES = _READ_BYTES = 1 << 16
_FOUND = 200
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """A streamed completion as its client saw it.

    Parameters
    ----------
    sent_s, answered_s : float
        When it was sent, and when the answer began or failed; times of `time.perf_counter`.
    chunks_s : tuple of float
        When chunks with text or tokens came.
    num_tokens : int
        Output tokens.
    text : str
    status : int
        HTTP status; 0 if there was no answer.
    error : str
        Why it failed; empty if it did not.
    """

    sent_s: float
    answered_s: float
    chunks_s: tuple[float, ...] = ()
    num_tokens: int = 0
    text: str = ""
    status: int = 200
    error: str = ""


class Completion(NamedTuple):
    """A completion in one piece, and why it ended: `stop` or `length`."""

    text: str
    num_tokens: int
    finish: str


class ServerClient:
    """A server.

    Parameters
    ----------
    url : str
        Its address, with or without `/v1`.
    api_key : str
    timeout_s : float
        Longest silence.

    Raises
    ------
    ValueError
        If the address is none of HTTP.
    """

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ValueError(f"--url is {url}; expected an address such as http://127.0.0.1:8000")
        self.url = url
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s

    def model(self) -> str:
        """Name of the model it serves, the first one if there are several. ValueError if it does not answer."""
        models = self._json("GET", "/v1/models").get("data") or [{}]
        name = models[0].get("id")
        if not isinstance(name, str):
            raise ValueError(f"--url {self.url}: the server names no model")
        return name

    def tokenize(self, text: str, *, model: str) -> tuple[int, ...]:
        """Token ids of a text, by the server's tokenizer; vLLM has the same endpoint. ValueError without it."""
        tokens = self._json("POST", "/tokenize", {"model": model, "prompt": text}).get("tokens")
        if not isinstance(tokens, list):
            raise ValueError(f"--url {self.url}: /tokenize answers without tokens")
        return tuple(tokens)

    def timelines(self) -> list[Timeline]:
        """Of the requests that ended last; none if the server keeps none, or is none of ours."""
        with self._answered("GET", "/timelines") as answer, suppress(ValueError):
            return timelines_from_json(answer.read()) if answer.status == _FOUND else []
        return []

    def complete(
        self,
        prompt: Sequence[int],
        *,
        model: str,
        num_tokens: int,
        client: str = "",
        request_id: str = "",
        limits: RequestClass | None = None,
    ) -> Streamed:
        """Stream a greedy completion of so many tokens. It never raises: `Streamed.error` says what went wrong.

        limits: on its latencies, which are sent as `slo`.
        """
        slo = {} if limits is None else {"ttft_ms": limits.ttft_s, "tpot_ms": limits.tpot_s}
        slo = {name: 1e3 * limit_s for name, limit_s in slo.items() if limit_s is not None}
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"user": client} if client else {}),
            **({"slo": slo} if slo else {}),
        }
        sent_s = time.perf_counter()
        try:
            with self._answer("POST", "/v1/completions", body, request_id=request_id) as answer:
                answered_s = time.perf_counter()
                if answer.status == _FOUND:
                    return replace(_followed(answer), sent_s=sent_s, answered_s=answered_s)
                error = _sentence(answer)
                return Streamed(sent_s=sent_s, answered_s=answered_s, status=answer.status, error=error)
        except (OSError, HTTPException, ValueError) as failure:
            why = brief(failure) or type(failure).__name__
            return Streamed(sent_s=sent_s, answered_s=time.perf_counter(), status=0, error=why)

    def write(self, prompt: str, *, model: str, num_tokens: int, temperature: float, seed: int) -> Completion:
        """Continue a text by `num_tokens` at most. ValueError if the server refuses."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        answer = self._json("POST", "/v1/completions", body)
        try:
            choice = answer["choices"][0]
            return Completion(choice["text"], answer["usage"]["completion_tokens"], choice["finish_reason"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"--url {self.url}: /v1/completions answers without a text or its tokens") from None

    def score(self, prompt: str, *, model: str) -> list[tuple[str, float | None]]:
        """Tokens of a text and their log-probs, None of the first. ValueError if the server cannot score prompts."""
        body = {"model": model, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0}
        answer = self._json("POST", "/v1/completions", body)
        try:
            scored = answer["choices"][0]["logprobs"]
            return list(zip(scored["tokens"], scored["token_logprobs"], strict=True))
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(f"--url {self.url}: the server does not score prompts (echo with max_tokens 0)") from None

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._answered(method, path, body) as answer:
            if answer.status != _FOUND:
                raise ValueError(f"--url {self.url}: {path} answers {answer.status} ({_sentence(answer)})")
            content: dict[str, Any] = parse_json(answer.read())
            return content

    @contextmanager
    def _answered(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[HTTPResponse]:
        """As `_answer`. ValueError if there is no answer."""
        try:
            with self._answer(method, path, body) as answer:
                yield answer
        except (OSError, HTTPException) as error:
            raise ValueError(f"--url {self.url}: no answer ({brief(error) or type(error).__name__})") from error

    @contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, request_id: str = ""
    ) -> Iterator[HTTPResponse]:
        connection = self._kind(self._host, self._port, timeout=_CONNECTS_WITHIN_S)
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(self._timeout_s)
            content = None if body is None else json.dumps(body).encode()
            headers = self._headers | ({"x-request-id": request_id} if request_id else {})
            connection.request(method, self._path + path, body=content, headers=headers)
            yield connection.getresponse()
        finally:
            connection.close()


def _followed(answer: HTTPResponse) -> Streamed:
    """Read a stream to its end.

    What comes is noted, and looked at afterwards: this program may share the cores of the server that it measures.
    """
    pieces: list[tuple[float, bytes]] = []
    while piece := answer.read1(_READ_BYTES):
        pieces.append((time.perf_counter(), piece))
        if piece.endswith(_DONE):
            break
    return _parsed(pieces)


def _parsed(pieces: Sequence[tuple[float, bytes]]) -> Streamed:
    chunks_s: list[float] = []
    texts: list[str] = []
    num_tokens, error, rest = 0, "the stream ended too early", b""
    for now_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line == _DONE.strip():
                error = ""
            elif line.startswith(b"data: "):
                data = parse_json(line[len(b"data: ") :])
                if "error" in data:
                    why = str(data["error"].get("message", "an error"))
                    return Streamed(sent_s=0.0, answered_s=0.0, chunks_s=tuple(chunks_s), error=why)
                if choices := data.get("choices"):
                    chunks_s.append(now_s)
                    texts.append(choices[0].get("text") or "")
                if usage := data.get("usage"):
                    num_tokens = usage["completion_tokens"]
    if not error and not (chunks_s and num_tokens):
        error = "the stream had no tokens, or did not count them"
    return Streamed(
        sent_s=0.0,
        answered_s=0.0,
        chunks_s=tuple(chunks_s),
        num_tokens=num_tokens,
        text="".join(texts),
        error=error,
    )


def _sentence(answer: HTTPResponse) -> str:
    """What an error's body says."""
    content = answer.read(_MOST_ERROR_BYTES)
    try:
        return str(parse_json(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.reason
