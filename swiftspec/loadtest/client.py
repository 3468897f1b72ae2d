"""A client of OpenAI's API that notes when every chunk of a stream comes. Thread-safe; every call has a connection.

No answer is read without a limit on its size and its time, and one that is odd in any way is an error of one sentence.
"""

import json
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple

from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.reading import MOST_JSON_BYTES
from swiftspec.loadtest.answers import (
    Answer,
    Failed,
    Model,
    Models,
    TokenIds,
    Version,
    WrittenText,
    read_answer,
    sentence_of,
)
from swiftspec.loadtest.connection import READ_BYTES, Address, Bounds, why
from swiftspec.loadtest.readings import Reading
from swiftspec.loadtest.streams import StreamedCompletion, followed, streamed
from swiftspec.timing.timeline import Timeline, timelines_from_json

_FOUND = 200
_QUICK_S = 60.0  # for what takes no forward
_MOST_HEADER_BYTES = 1 << 16
_MOST_ERROR_BYTES = 1 << 16
_MOST_METRICS_BYTES = 16 << 20
_MOST_TIMELINES_BYTES = 32 << 20  # of 2,000 requests with 64 tokens
# Of an answer with a text: chunks of 200 to 400 bytes are usual, and may have a token each.
_SOME_BYTES, _TOKEN_BYTES = 1 << 18, 1 << 12


class Completion(NamedTuple):
    """A completion in one piece, and why it ended: `stop` or `length`."""

    text: str
    num_tokens: int
    finish: str


class ServerClient:
    """A server.

    url: its address, with or without `/v1`. timeout_s: longest silence. total_s: longest time from a request to the end
    of its answer.

    ValueError: if the address is none of HTTP, or the key none that can be sent.
    """

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float = 600.0, total_s: float = 3600.0) -> None:
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("the API key has characters that no header can have; expected printable ASCII")
        self.url = url
        self._address = Address(url)
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._total_s = total_s

    def model(self) -> str:
        """Name of the model it serves, the first one if there are several. ValueError if it does not answer."""
        return self._model().id

    def tokenize(self, text: str, *, model: str) -> tuple[int, ...]:
        """Token ids of a text, by the server's tokenizer; vLLM has the same endpoint. ValueError without it."""
        found = self.answered(TokenIds, "/tokenize", {"model": model, "prompt": text}).tokens
        if found or not text:
            return found
        return self.answered(TokenIds, "/tokenize", {"content": text}).tokens  # llama.cpp's word for it

    def max_context(self) -> int | None:
        """Tokens of its longest request, if it says so. ValueError if it does not answer."""
        model = self._model()
        return model.max_model_len or model.meta.n_ctx  # the second is llama.cpp's word

    def weights(self) -> str | None:
        """Repository or directory of its model, if it says so. ValueError if it does not answer."""
        return self._model().root

    def release(self) -> str:
        """Its release, as vLLM says it; empty if it says none."""
        try:
            return self.answered(Version, "/version").version
        except ValueError:
            return ""

    def reading(self) -> Reading:
        """Its metrics now. ValueError if it has none, or none that are known here."""
        try:
            status, content = self._read("/metrics", _MOST_METRICS_BYTES)
        except (OSError, HTTPException) as error:
            raise ValueError(f"--url {self.url}: no answer to /metrics ({why(error)})") from error
        if status != _FOUND:
            raise ValueError(f"--url {self.url}: /metrics answers {status}; expected a server that tells its metrics")
        return Reading.parse(content.decode(errors="replace"), f"--url {self.url}")

    def timelines(self) -> list[Timeline]:
        """Timelines of the requests that ended last; none if the server keeps none, or is none of ours."""
        try:
            status, content = self._read("/timelines", _MOST_TIMELINES_BYTES)
            return timelines_from_json(content) if status == _FOUND else []
        except (OSError, HTTPException, ValueError):
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
    ) -> StreamedCompletion:
        """Stream a greedy completion of so many tokens. It never raises: the result's `error` says what went wrong.

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
        headers = self._headers | ({"x-request-id": request_id} if request_id else {})
        bounds = self._bounds(_SOME_BYTES + _TOKEN_BYTES * num_tokens)
        sent_s, status = time.perf_counter(), 0
        try:
            with self._address.asked("POST", "/v1/completions", _json(body), headers, bounds=bounds) as answer:
                answered_s, status = time.perf_counter(), answer.status
                if status != _FOUND:
                    return StreamedCompletion(
                        sent_s=sent_s, answered_s=answered_s, status=status, error=_sentence(answer)
                    )
                pieces = followed(answer)
            return streamed(pieces, sent_s=sent_s, answered_s=answered_s, most_tokens=num_tokens)
        except (OSError, HTTPException, ValueError) as error:
            return StreamedCompletion(sent_s=sent_s, answered_s=time.perf_counter(), status=status, error=why(error))

    def write(self, prompt: str, *, model: str, num_tokens: int, temperature: float, seed: int) -> Completion:
        """Continue a text by `num_tokens` at most. ValueError if the server refuses."""
        body = {"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": temperature, "seed": seed}
        most_bytes = _SOME_BYTES + _TOKEN_BYTES * num_tokens
        answer = self.answered(WrittenText, "/v1/completions", body, most_bytes=most_bytes)
        choice, num_written = answer.choices[0], answer.usage.completion_tokens
        if not bool(choice.text) <= num_written <= num_tokens:
            raise ValueError(
                f"--url {self.url}: /v1/completions counts {num_written} tokens in {len(choice.text)} characters; "
                f"expected {num_tokens} at most, and one if there is text"
            )
        return Completion(choice.text, num_written, choice.finish_reason or "")

    def _bounds(self, most_bytes: int, *, total_s: float | None = None) -> Bounds:
        total_s = self._total_s if total_s is None else min(total_s, self._total_s)
        return Bounds(most_bytes=_MOST_HEADER_BYTES + most_bytes, silence_s=self._timeout_s, total_s=total_s)

    def _model(self) -> Model:
        return self.answered(Models, "/v1/models").data[0]

    def _read(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        """Status and body. OSError or HTTPException without them."""
        bounds = self._bounds(most_bytes, total_s=_QUICK_S)
        with self._address.asked("GET", path, None, self._headers, bounds=bounds) as answer:
            return answer.status, _body(answer)

    def answered(
        self, kind: type[Answer], path: str, body: Mapping[str, Any] | None = None, *, most_bytes: int | None = None
    ) -> Answer:
        """An answer in one piece. ValueError if there is none, or another one.

        most_bytes: of an answer that may take its time; without, it is to come soon.
        """
        method, content = ("GET", None) if body is None else ("POST", _json(body))
        bounds = self._bounds(most_bytes or MOST_JSON_BYTES, total_s=None if most_bytes else _QUICK_S)
        try:
            with self._address.asked(method, path, content, self._headers, bounds=bounds) as answer:
                status, found = answer.status, _body(answer) if answer.status == _FOUND else b""
                refusal = "" if status == _FOUND else _sentence(answer)
        except OSError as error:
            raise ValueError(f"--url {self.url}: no answer to {path} ({why(error)})") from error
        except HTTPException as error:
            raise ValueError(f"--url {self.url}: the answer to {path} is wrong: {why(error)}") from error
        if status != _FOUND:
            raise ValueError(f"--url {self.url}: {path} answers {status} ({refusal})")
        try:
            return read_answer(kind, found)
        except ValueError as error:
            raise ValueError(f"--url {self.url}: the answer to {path} is wrong: {why(error)}") from error


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _body(answer: HTTPResponse) -> bytes:
    """HTTPException if it ends too early."""
    content = b"".join(iter(lambda: answer.read1(READ_BYTES), b""))
    if answer.length:
        raise HTTPException(f"it ended {answer.length} bytes too early")
    return content


def _sentence(answer: HTTPResponse) -> str:
    """What an error's body says, or else its status."""
    try:
        said = sentence_of(read_answer(Failed, answer.read(_MOST_ERROR_BYTES)).error)
    except ValueError:
        said = ""
    return said or sentence_of(answer.reason) or "without a reason"
