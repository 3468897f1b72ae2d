"""Acceptance in servers' logs, and in what `vllm bench serve` prints: one reader for each program.

Sources: vLLM, `vllm/v1/spec_decode/metrics.py` and `vllm/benchmarks/serve.py`; llama.cpp, `server-context.cpp` and its
pull request 24536; SGLang, `srt/observability/metrics_collector.py`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from swiftspec.acceptance.server_counts import Counts, numbered

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_RATES: Final = r"(\d+\.\d+(?:, ?\d+\.\d+)*)"
_SOME: Final = ".{0,400}?"  # of a line, which may be long
_VLLM_LINE = re.compile(r"SpecDecoding metrics: (.{0,2000})")
_VLLM_FIELD = re.compile(rf"(Accepted|Drafted|Accepted throughput|Drafted throughput): {_NUMBER}")
_VLLM_RATES = re.compile(rf"Per-position acceptance rate: {_RATES}")
_BENCH_RATE = re.compile(rf"Position \d+: +{_NUMBER}")
_BENCH_BLOCK = re.compile(
    rf"^Acceptance length: +{_NUMBER}\s+Drafts: +{_NUMBER}\s+Draft tokens: +{_NUMBER}\s+Accepted tokens: +{_NUMBER}"
    rf"(?:\s+Per-position acceptance \(%\):)?((?:\s+Position \d+: +\d+(?:\.\d+)?)*)",
    re.MULTILINE,
)
_LLAMA_LINE = re.compile(
    rf"draft acceptance(?: rate)? = {_NUMBER} \( *{_NUMBER} accepted / *{_NUMBER} generated\)"
    rf"(?:, mean (?:acceptance length|len) = +{_NUMBER})?(?:, acceptance rate per position = \({_RATES}\))?"
)
_LLAMA_STATISTICS = re.compile(
    rf"statistics +(\S+): {_SOME}#gen drafts = +{_NUMBER}, {_SOME}#gen tokens = +{_NUMBER}, #acc tokens = +{_NUMBER}"
    rf"(?:{_SOME}#acc rate/pos = \({_RATES}\))?"
)
_SGLANG_LINE = re.compile(rf"Decode batch{_SOME}#running-req: {_NUMBER}{_SOME}accept len: {_NUMBER}")
_SGLANG_STATED = [re.compile(rf"speculative_{name}=(\d+)") for name in ("num_steps", "num_draft_tokens", "eagle_topk")]
_ROUNDING: Final = 0.02  # of drafts that follow from rates with three decimals


def _rates(text: str | None) -> list[float]:
    return [float(rate) for rate in (text or "").split(",") if rate.strip()]


def _vllm(text: str) -> list[Counts]:
    """Each line is of the drafts since the last one."""
    parts = [_of_vllm_line(line[1]) for line in _VLLM_LINE.finditer(text)]
    drafted = [part for part in parts if part.drafted]
    note = f"{numbered(len(drafted), 'line')} of vLLM's log, weighed by drafts"
    return [replace(part, note=note) for part in drafted or parts]


def _of_vllm_line(line: str) -> Counts:
    found = {name: float(number) for name, number in _VLLM_FIELD.findall(line)}
    match = _VLLM_RATES.search(line)
    rates = _rates(match[1] if match else None)
    # Without counts, tokens per second have the same shares; without either, a line counts as one draft.
    drafted = found.get("Drafted", found.get("Drafted throughput", float(len(rates))))
    accepted = found.get("Accepted", found.get("Accepted throughput", sum(rates)))
    drafts = drafted / len(rates) if rates else 0.0
    if sum(rates) and accepted / sum(rates) > (1 + _ROUNDING) * drafts:
        drafts = accepted / sum(rates)  # some drafts have fewer tokens
    return Counts("vllm-log", "", drafts, drafted, accepted, [rate * drafts for rate in rates])


def _bench(text: str) -> list[Counts]:
    parts = []
    for block in _BENCH_BLOCK.finditer(text):
        drafts, drafted, accepted = (float(block[group]) for group in (2, 3, 4))
        by_position = [float(share) / 100 * drafts for share in _BENCH_RATE.findall(block[5])]
        parts.append(Counts("vllm-bench", "", drafts, drafted, accepted, by_position))
    return [replace(part, note=f"{numbered(len(parts), 'result')} of vllm bench serve") for part in parts]


def _llamacpp(text: str) -> list[Counts]:
    """Statistics of every kind of draft, the last of which are of all drafts so far; without them, of each request."""
    last = {found[1]: found for found in _LLAMA_STATISTICS.finditer(text) if float(found[2])}
    parts = []
    for found in last.values():
        drafts, drafted, accepted = (float(found[group]) for group in (2, 3, 4))
        by_position = [rate * drafts for rate in _rates(found[5])]
        parts.append(Counts("llamacpp-log", "", drafts, drafted, accepted, by_position))
    if parts:
        return [replace(part, note=f"statistics in llama.cpp's log, of {', '.join(last)}") for part in parts]
    for found in _LLAMA_LINE.finditer(text):
        accepted, drafted, length = float(found[2]), float(found[3]), float(found[4] or 1)
        drafts = accepted / (length - 1) if length > 1 else 0.0
        parts.append(
            Counts("llamacpp-log", "", drafts, drafted, accepted, [rate * drafts for rate in _rates(found[5])])
        )
    return [replace(part, note=f"{numbered(len(parts), 'request')} in llama.cpp's log") for part in parts]


def _sglang(text: str) -> list[Counts]:
    lines = [(float(line[1]), float(line[2])) for line in _SGLANG_LINE.finditer(text)]
    weighed = [(running, length) for running, length in lines if running and length]
    if not weighed:
        return []
    mean = sum(running * length for running, length in weighed) / sum(running for running, _ in weighed)
    steps, rows, top_k = (int(match[1]) if (match := name.search(text)) else 0 for name in _SGLANG_STATED)
    note = f"{numbered(len(weighed), 'line')} of SGLang's log, weighed by running requests"
    return [Counts("sglang-log", note, length=mean, steps=steps, rows=rows, top_k=top_k)]


LOGS: Final[Sequence[Callable[[str], list[Counts]]]] = (_bench, _vllm, _llamacpp, _sglang)
