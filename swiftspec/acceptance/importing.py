"""Acceptance by position from what servers count, and from traces."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.records import LONGEST, Form
from swiftspec.acceptance.server_counts import Counts, in_documents, in_metrics, total
from swiftspec.acceptance.server_logs import LOGS
from swiftspec.artifacts.trace import AcceptanceTrace, TracedPrompt
from swiftspec.errors import FieldError
from swiftspec.files.reading import read_input

_MOST_BYTES = 64 << 20
_LEAST_FULL = 0.98  # of the drafts' mean length, relative to the longest
_ROUNDING = 1.005
_EXPECTED = (
    "expected metrics, a log, results of vllm bench serve or answers of vLLM, SGLang or llama.cpp that count drafts, "
    "or a trace; shares that you know by position need no file, only --acceptance 0.7,0.45"
)


class MeasuredAcceptance(NamedTuple):
    """Values of an `AcceptanceRecord`, and a note on their origin."""

    quantity: Form
    bonus: bool
    num_draft_tokens: int
    values: tuple[float, ...]
    note: str
    source: str
    target: str = ""
    top_k: int = 1
    rows: int | None = None


def from_server(
    path: Path,
    *,
    target: str = "",
    num_draft_tokens: int | None = None,
    top_k: int | None = None,
    rows: int | None = None,
) -> MeasuredAcceptance:
    """Acceptance that a server counted, in a file whose content says what it is.

    target: chooses one of several models. num_draft_tokens, top_k, rows: shape of the drafts, where the file does not
    say. ValueError naming the file, or the setting that is missing.
    """
    try:
        text = read_input(path, most_bytes=_MOST_BYTES, pipes=True).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not text; {_EXPECTED}") from error
    parts = in_documents(text, path) or in_metrics(text, path)
    parts = parts or next((found for read in LOGS if (found := read(text))), [])
    if not parts:
        raise ValueError(f"{path}: counts no drafts of a server; {_EXPECTED}")
    counts = total(parts, target=target, path=path)
    if counts.length:
        return _of_length(counts, path, num_draft_tokens, top_k, rows)
    return _of_counts(counts, path, num_draft_tokens)


def _of_counts(counts: Counts, path: Path, num_draft_tokens: int | None) -> MeasuredAcceptance:
    """Rates by position, of drafts of one length. Of others, and without positions, the share that was accepted."""
    if not counts.drafted:
        raise ValueError(f"{path}: counts 0 drafted tokens; expected those of a server that has speculated")
    longest, mean = len(counts.by_position), counts.drafted / counts.drafts if counts.drafts else 0.0
    if max((counts.accepted / counts.drafted, *_shares(counts))) > _ROUNDING:
        raise ValueError(f"{path}: counts more accepted tokens than drafted ones; expected counts of one server")
    if longest and mean > longest * _ROUNDING:
        raise ValueError(f"{path}: counts {mean:.1f} tokens a draft; expected at most its {longest} positions")
    if longest and mean >= _LEAST_FULL * longest:
        if num_draft_tokens not in (None, longest):
            raise ValueError(f"--set num_draft_tokens is {num_draft_tokens}; {path} counts {longest} positions")
        if longest > LONGEST:
            raise ValueError(f"{path}: drafts have {longest} tokens; expected at most {LONGEST}")
        rates = tuple(min(1.0, share) for share in _shares(counts))
        return MeasuredAcceptance(Form.RATES, False, longest, rates, counts.note, counts.source, counts.model)
    length = num_draft_tokens or round(mean)
    if not length:
        raise ValueError(f"--set num_draft_tokens is missing; {path} does not tell how many tokens a draft has")
    is_varied = mean and abs(mean - length) > (1 - _LEAST_FULL) * length
    varied = f", drafts of {mean:.1f} tokens on average, read as chains of {length}" if is_varied else ""
    tokens = 1 + length * min(1.0, counts.accepted / counts.drafted)
    return MeasuredAcceptance(Form.LENGTH, True, length, (tokens,), counts.note + varied, counts.source, counts.model)


def _shares(counts: Counts) -> Sequence[float]:
    return [accepted / counts.drafts for accepted in counts.by_position] if counts.drafts else []


def _of_length(
    counts: Counts, path: Path, num_draft_tokens: int | None, top_k: int | None, rows: int | None
) -> MeasuredAcceptance:
    """A mean length of chains, or of trees, as SGLang has it. A block is one step of it, whose rows are its tokens."""
    is_block = counts.steps == 1 and counts.top_k <= 1
    stated = counts.rows - 1 if is_block and counts.rows else counts.steps
    length = num_draft_tokens or stated
    if not length:
        raise ValueError(f"--set num_draft_tokens is missing; {path} does not tell the length of chains")
    if stated and length != stated:
        raise ValueError(f"--set num_draft_tokens is {length}; {path} states {stated}")
    rows, top_k = rows or (counts.rows if counts.rows > length + 1 else None), top_k or counts.top_k or None
    if rows is not None and top_k is None:
        raise ValueError(f"--set top_k is missing; {path} states trees of {length} steps and {rows} rows")
    if not 1 <= counts.length <= length + 1:
        raise ValueError(
            f"{path}: rounds have {counts.length:g} tokens; expected 1 to {length + 1} of chains of {length}"
        )
    facts = ((counts.length,), counts.note, counts.source, counts.model, top_k or 1, rows)
    return MeasuredAcceptance(Form.LENGTH, True, length, *facts)


def from_trace(trace: AcceptanceTrace, *, num_draft_tokens: int) -> MeasuredAcceptance:
    """Rates by position of serial chains over a trace's outputs, as of `chain_rates`."""
    rates, num_rounds = chain_rates(trace, num_draft_tokens)
    note = f"{num_rounds} rounds of chains on a trace"
    return MeasuredAcceptance(Form.RATES, False, num_draft_tokens, rates, note, "trace")


def chain_rates(trace: AcceptanceTrace, num_draft_tokens: int) -> tuple[tuple[float, ...], int]:
    """Share of the rounds in which at least 1, 2, .. draft tokens are accepted, and the number of rounds.

    1 plus their sum are a round's tokens. Rounds follow each other through every output, as greedy chains do; those
    that are cut off by its end do not count. ValueError if no output is as long as a chain.
    """
    accepted, num_rounds = np.zeros(num_draft_tokens), 0
    for prompt in trace.prompts:
        hits, start = _hits(prompt, num_draft_tokens), 0
        while start + num_draft_tokens <= len(hits):
            chain = hits[start + np.arange(num_draft_tokens), np.arange(num_draft_tokens)]
            length = num_draft_tokens if chain.all() else int(chain.argmin())
            accepted[:length] += 1
            num_rounds += 1
            start += length + 1
    if not num_rounds:
        longest = max(len(prompt.target_tokens) for prompt in trace.prompts)
        raise FieldError(
            "num_draft_tokens", num_draft_tokens, f"the trace has no output of so many tokens, at most {longest}"
        )
    return tuple((accepted / num_rounds).tolist()), num_rounds


def _hits(prompt: TracedPrompt, num_draft_tokens: int) -> npt.NDArray[np.bool_]:
    """Whether the first candidate is the target's token, by position and number of the drafted token: (T, K)."""
    known = prompt.draft.tokens[:, :1]
    if prompt.ahead is None:
        firsts = np.repeat(known, num_draft_tokens, axis=1)
    else:
        ahead = prompt.ahead.tokens[:, :, 0]
        farther = np.minimum(np.arange(num_draft_tokens - 1), ahead.shape[1] - 1)  # as the simulator replays it
        firsts = np.concatenate([known, ahead[:, farther]], axis=1)
    hits: npt.NDArray[np.bool_] = firsts == prompt.target_tokens[:, None]
    return hits
