"""Acceptance by position from servers' metrics and from traces."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.records import LONGEST, Form
from swiftspec.artifacts.trace import AcceptanceTrace, TracedPrompt
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.vllm import VLLM
from swiftspec.errors import FieldError
from swiftspec.files.reading import read_input, shown

__all__ = ["MeasuredAcceptance", "chain_rates", "from_sglang", "from_trace", "from_vllm"]

_MOST_BYTES = 24 << 20
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>.*)\})?\s+(?P<value>\S+)(\s+\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SGLANG_LENGTH = SGLANG.metrics["accepted_length"]
_PER_POSITION = VLLM.metrics["accepted_by_position"]
_LEAST_FULL = 0.98  # of the drafted chains' mean length, relative to the longest


class MeasuredAcceptance(NamedTuple):
    """Values of an `AcceptanceRecord`, and a note on their origin."""

    quantity: Form
    bonus: bool
    num_draft_tokens: int
    values: tuple[float, ...]
    note: str


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def from_vllm(path: Path) -> MeasuredAcceptance:
    """Rates by position from a dump of vLLM's /metrics: accepted tokens of every position, over drafts.

    Raises
    ------
    ValueError
        One sentence naming the file: a counter is missing or zero, several models are served, or the length of drafts
        varied, since vLLM does not count drafts by length.
    """
    counters = _vllm_counters(path)
    for name in (VLLM.metrics["drafts"], VLLM.metrics["draft_tokens"]):
        if not counters.sums.get(name):
            found = "0" if name in counters.sums else "missing"
            raise ValueError(f"{path}: {name} is {found}; expected the metrics of a vLLM that has speculated")
    accepted, drafts = counters.by_position, counters.sums[VLLM.metrics["drafts"]]
    longest = len(accepted)
    if not 1 <= longest <= LONGEST or sorted(accepted) != list(range(longest)):
        raise ValueError(f"{path}: {_PER_POSITION} has positions {shown(sorted(accepted))}; expected 0, 1, ..")
    mean = counters.sums[VLLM.metrics["draft_tokens"]] / drafts
    if not _LEAST_FULL * longest <= mean <= longest:
        raise ValueError(
            f"{path}: drafts have {mean:.2f} tokens on average and {longest} positions; expected drafts of one length, "
            "since vLLM does not count drafts by length"
        )
    rates = tuple(accepted[position] / drafts for position in range(longest))
    if max(rates) > 1:
        raise ValueError(f"{path}: position {rates.index(max(rates))} was accepted more often than it was drafted")
    return MeasuredAcceptance(Form.RATES, False, longest, rates, f"{drafts:.0f} drafts counted by vLLM")


def from_sglang(path: Path, *, num_draft_tokens: int) -> MeasuredAcceptance:
    """A mean length from a dump of SGLang's /metrics, which have nothing by position.

    SGLang counts the bonus token. Several ranks are averaged. ValueError naming the file if the gauge is missing or
    impossible.
    """
    found = [value for name, _, value in _samples(path) if name == _SGLANG_LENGTH]
    if not found:
        raise ValueError(f"{path}: {_SGLANG_LENGTH} is missing; expected the metrics of an SGLang that has speculated")
    length = sum(found) / len(found)
    if not 1 <= length <= num_draft_tokens + 1:
        raise ValueError(
            f"{path}: {_SGLANG_LENGTH} is {length:g}; expected 1 to {num_draft_tokens + 1} "
            f"for chains of {num_draft_tokens}"
        )
    return MeasuredAcceptance(Form.LENGTH, True, num_draft_tokens, (length,), "gauge of SGLang over its last batches")


def from_trace(trace: AcceptanceTrace, *, num_draft_tokens: int) -> MeasuredAcceptance:
    """Rates by position of serial chains over a trace's outputs, rounds cut off by an output's end not counted.

    ValueError if no output is as long as a chain.
    """
    rates, num_rounds = chain_rates(trace, num_draft_tokens)
    return MeasuredAcceptance(Form.RATES, False, num_draft_tokens, rates, f"{num_rounds} rounds of chains on a trace")


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


def _samples(path: Path) -> Iterator[_Sample]:
    """Samples of a file in Prometheus' text format. ValueError with file and line for anything else."""
    try:
        text = read_input(path, most_bytes=_MOST_BYTES, pipes=True).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not text; expected the answer of /metrics") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        try:
            value = float(match["value"]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise ValueError(f"{path}, line {number}: {shown(line)} is no sample of Prometheus' text format")
        yield _Sample(match["name"], dict(_LABEL.findall(match["labels"] or "")), value)


class _Counters(NamedTuple):
    """vLLM's counters: sums over engines by name, and accepted tokens by position."""

    sums: dict[str, float]
    by_position: dict[int, float]


def _vllm_counters(path: Path) -> _Counters:
    sums: dict[str, float] = defaultdict(float)
    by_position: dict[int, float] = defaultdict(float)
    models: set[str] = set()
    for name, labels, value in _samples(path):
        counter = name.removesuffix("_total")  # which Prometheus' client adds
        if counter not in VLLM.metrics.values():
            continue
        models.add(labels.get("model_name", ""))
        if counter == _PER_POSITION:
            by_position[_position(path, labels)] += value
        else:
            sums[counter] += value
    if len(models) > 1:
        raise ValueError(f"{path}: has counters of {len(models)} models, {', '.join(sorted(models))}; expected one")
    return _Counters(sums, by_position)


def _position(path: Path, labels: dict[str, str]) -> int:
    position = labels.get("position", "")
    if not position.isdecimal():
        raise ValueError(f"{path}: position of {_PER_POSITION} is {position!r}; expected 0, 1, ..")
    return int(position)
