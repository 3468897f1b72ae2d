"""Streamed completions as their clients see them: when each chunk came, and what it said."""

import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPResponse
from itertools import accumulate

from swiftspec.loadtest.answers import Chunk, Timings, read_answer, sentence_of
from swiftspec.loadtest.connection import READ_BYTES

_DONE = re.compile(rb"\ndata: ?\[DONE\]")  # no text of a chunk has a line break: JSON spells it out
_DONE_BYTES = len(b"\ndata: [DONE]")

Piece = tuple[float, bytes]  # when it came, of `time.perf_counter`


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedCompletion:
    """A streamed completion as its client saw it.

    sent_s, answered_s: when it was sent, and when the answer began or failed; times of `time.perf_counter`.
    chunks_s: when chunks with text or tokens came.
    num_tokens: output tokens.
    timings: what the server says of its own work, if it does.
    status: HTTP status; 0 if there was no answer.
    error: why it failed; empty if it did not.
    """

    sent_s: float
    answered_s: float
    chunks_s: tuple[float, ...] = ()
    num_tokens: int = 0
    timings: Timings | None = None
    text: str = ""
    status: int = 200
    error: str = ""

    @property
    def num_rounds(self) -> int:
        """Steps that wrote it: a chunk is one, but of llama.cpp, where every token is a chunk."""
        return len(self.chunks_s) - (self.timings.draft_n_accepted if self.timings else 0)


def followed(answer: HTTPResponse) -> list[Piece]:
    """What comes of a stream, to its end.

    It is looked at afterwards: this program may share the cores of the server that it measures.
    """
    pieces: list[Piece] = []
    end = b""
    while piece := answer.read1(READ_BYTES):
        pieces.append((time.perf_counter(), piece))
        end += piece
        if _DONE.search(end):
            break
        end = end[-_DONE_BYTES:]
    return pieces


def streamed(pieces: Sequence[Piece], *, sent_s: float, answered_s: float, most_tokens: int) -> StreamedCompletion:
    """The completion that a stream has told. ValueError if an event is none of a completion's, or counts too many."""
    chunks_s: list[float] = []
    texts: list[str] = []
    num_tokens, timings, error = 0, None, "the stream ended too early"
    for now_s, data in _events(pieces):
        if data == b"[DONE]":
            error = ""
            break
        chunk = read_answer(Chunk, data)
        if chunk.error is not None:
            error = sentence_of(chunk.error) or "an error"
            break
        if chunk.choices and (chunk.timings is None or chunk.choices[0].text):  # llama.cpp's last one has no token
            chunks_s.append(now_s)
            texts.append(chunk.choices[0].text or "")
        if chunk.usage is not None:
            num_tokens = chunk.usage.completion_tokens
        timings = chunk.timings or timings
    if not error and not (chunks_s and num_tokens):
        error = "the stream had no tokens, or did not count them"
    if not error and num_tokens > most_tokens:
        error = f"the stream counts {num_tokens} tokens; expected {most_tokens} at most"
    return StreamedCompletion(
        sent_s=sent_s,
        answered_s=answered_s,
        chunks_s=tuple(chunks_s),
        num_tokens=num_tokens,
        timings=timings,
        text="".join(texts),
        error=error,
    )


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[float, bytes]]:
    """Data of each event, and when the last byte of its line came."""
    ends = [*accumulate(len(piece) for _, piece in pieces)]
    end = 0
    for line in b"".join(piece for _, piece in pieces).splitlines(keepends=True):
        end += len(line)
        if line.startswith(b"data:") and line.endswith((b"\n", b"\r")):
            yield pieces[bisect_left(ends, end)][0], line.removeprefix(b"data:").strip()
