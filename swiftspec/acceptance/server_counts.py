"""Counts of drafts in servers' metrics, and in JSON: in results of benchmarks, and in answers to requests.

Sources: vLLM, `vllm/v1/spec_decode/metrics.py`, `vllm/benchmarks/serve.py` and
`docs/features/speculative_decoding/acceptance_metrics.md`; SGLang, `srt/observability/metrics_collector.py`; llama.cpp,
pull request 12603.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, Final

from swiftspec.files.prometheus import samples
from swiftspec.files.reading import parse_foreign_json, shown

_OF_SERVER = re.compile(r"^(vllm|llamacpp|swiftspec|sglang):\w+[{ ]", re.MULTILINE)
_PER_POSITION: Final = "accepted_tokens_per_pos"
_NAMES: Final = {"vllm": "vLLM", "llamacpp": "llama.cpp", "swiftspec": "swiftspec"}


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted. Zero or empty is what the source does not say."""

    source: str  # what the file is, such as `vllm-metrics`
    note: str  # a clause
    # drafts, drafted, accepted: drafts, their tokens, and accepted ones, also by position
    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    by_position: Sequence[float] = ()
    model: str = ""  # the target's name
    length: float = 0.0  # where no drafts are counted, mean tokens of a round, the bonus token included
    # steps, rows, top_k: of a draft, as the server states them; rows are verified
    steps: int = 0
    rows: int = 0
    top_k: int = 0


def numbered(count: int, noun: str) -> str:
    """A number of things: `1 line`, `2 lines`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def total(parts: Sequence[Counts], *, target: str, path: Path) -> Counts:
    """Sums over one model's parts. ValueError naming the models, if there are several and `target` is none of them."""
    models = sorted({part.model for part in parts})
    own = [part for part in parts if part.model == target] or [part for part in parts if _is_name(part.model, target)]
    if len(models) > 1 and not own:
        raise ValueError(f"{path}: counts drafts of {', '.join(models)}; expected one of these models as --target")
    parts = own if len(models) > 1 else parts
    drafted = [part for part in parts if part.drafted]
    if not drafted:
        return parts[0]
    has_all = all(part.by_position for part in drafted)
    positions = zip_longest(*(part.by_position for part in drafted), fillvalue=0.0)
    return replace(
        drafted[0],
        drafts=sum(part.drafts for part in drafted) if all(part.drafts for part in drafted) else 0.0,
        drafted=sum(part.drafted for part in drafted),
        accepted=sum(part.accepted for part in drafted),
        by_position=[sum(accepted) for accepted in positions] if has_all else (),
    )


def _is_name(model: str, target: str) -> bool:
    """Whether a target is meant: `qwen3-32b` is Qwen/Qwen3-32B."""
    return model.rsplit("/", 1)[-1].lower() == target.rsplit("/", 1)[-1].lower()


def in_metrics(text: str, path: Path) -> list[Counts]:
    """Of the answer of /metrics, for every model; empty if it is no such file. ValueError naming file and line."""
    found = _OF_SERVER.search(text)
    if not found:
        return []
    return _sglang(text, path) if found[1] == "sglang" else _counters(text, path, found[1])


def _counters(text: str, path: Path, server: str) -> list[Counts]:
    """Counters of vLLM, and of servers that use its names, summed over engines and slots."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    positions: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    prefix = f"{server}:spec_decode_num_"
    for name, labels, value in samples(text, str(path)):
        if not name.startswith(prefix):
            continue
        counter = name.removeprefix(prefix).removesuffix("_total")  # which Prometheus' client adds
        model = labels.get("model_name", "")
        if counter == _PER_POSITION:
            positions[model][labels.get("position", "")] += value
        else:
            sums[model][counter] += value
    if not any(found["drafts"] for found in sums.values()):
        raise ValueError(f"{path}: {prefix}drafts is missing or 0; expected a {_NAMES[server]} that has speculated")
    parts = []
    for model, found in sums.items():
        known = positions[model]
        numbers = [str(number) for number in range(len(known))]
        if known.keys() != set(numbers):
            raise ValueError(f"{path}: {prefix}{_PER_POSITION} has positions {shown(sorted(known))}; expected 0, 1, ..")
        drafts, drafted, accepted = (found[counter] for counter in ("drafts", "draft_tokens", "accepted_tokens"))
        by_position = [known[number] for number in numbers]
        note = f"{drafts:.0f} drafts counted by {_NAMES[server]}"
        parts.append(Counts(f"{server}-metrics", note, drafts, drafted, accepted, by_position, model))
    return parts


def _sglang(text: str, path: Path) -> list[Counts]:
    """Gauges of SGLang: the mean over ranks that are not idle. Those of the draft's own engine are left out."""
    gauges: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, labels, value in samples(text, str(path)):
        if name.startswith("sglang:spec_") and labels.get("engine_type") != "draft" and math.isfinite(value):
            gauges[labels.get("model_name", "")][name.removeprefix("sglang:spec_")].append(value)
    parts = []
    for model, found in gauges.items():
        lengths = found["accept_length"]
        busy = [length for length in lengths if length]
        idle = f" that are not idle, of {len(lengths)}" if len(busy) < len(lengths) else ""
        ranks = f", mean of {numbered(len(busy), 'rank')}{idle}" if len(lengths) > 1 else ""
        note = f"gauge of SGLang over its last batches{ranks}"
        if busy:
            mean = sum(busy) / len(busy)
            steps, rows = (int(max(found[field], default=0)) for field in ("num_steps", "num_draft_tokens"))
            parts.append(Counts("sglang-metrics", note, model=model, length=mean, steps=steps, rows=rows))
    if not parts:
        raise ValueError(f"{path}: sglang:spec_accept_length is missing or 0; expected an SGLang that has speculated")
    return parts


def in_documents(text: str, path: Path) -> list[Counts]:
    """Of JSON: a document, a list of them, or one a line, as in a stream. Empty if it is none. ValueError naming file.

    Known are results of `vllm bench serve`, and answers of vLLM and llama.cpp.
    """
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[{", "[\n", "data:")):
        return []
    by_request: dict[object, Counts] = {}  # of a stream, whose last event counts
    for number, document in enumerate(_json(text, path)):
        if isinstance(document, dict) and (part := _of_document(document, path)):
            by_request[_text(document, "id") or number] = part
    return [replace(part, note=f"{part.note}: {len(by_request)}") for part in by_request.values()]


def _json(text: str, path: Path) -> Iterator[Any]:
    try:
        whole = parse_foreign_json(text)
    except ValueError:  # one a line
        for number, line in enumerate(StringIO(text), start=1):
            content = line.strip().removeprefix("data:").strip()
            if content and content != "[DONE]":
                try:
                    yield parse_foreign_json(content)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
    else:
        yield from whole if isinstance(whole, list) else [whole]


def _of_document(document: Mapping[str, Any], path: Path) -> Counts | None:
    if document.get("spec_decode_num_drafts") is not None:
        names = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
        drafts, drafted, accepted = (_number(document.get(name), name, path) for name in names)
        shares = _numbers(document, "spec_decode_per_position_acceptance_rates", path)
        unit = drafts / (100 if max(shares, default=0.0) > 1 else 1)  # some write percentages
        model, by_position = _text(document, "model_id"), [share * unit for share in shares]
        return Counts("vllm-bench", "results of vllm bench serve", drafts, drafted, accepted, by_position, model)
    metrics, timings = document.get("metrics"), document.get("timings", document)
    spec = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if isinstance(spec, dict):
        names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        drafts, drafted, accepted = (_number(spec.get(name), name, path) for name in names)
        histogram = _numbers(spec, "acceptance_histogram", path)  # by number of accepted tokens, from none on
        model, by_position = _text(document, "model"), [*accumulate(histogram[:0:-1])][::-1]
        return Counts("vllm-answers", "answers of vLLM", drafts, drafted, accepted, by_position, model)
    if isinstance(timings, dict) and timings.get("draft_n") is not None:
        drafted, accepted = (_number(timings.get(name), name, path) for name in ("draft_n", "draft_n_accepted"))
        return Counts("llamacpp-answers", "answers of llama.cpp", 0.0, drafted, accepted, (), _text(document, "model"))
    return None


def _text(document: Mapping[str, Any], field: str) -> str:
    value = document.get(field)
    return value if isinstance(value, str) else ""


def _number(value: object, field: str, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{path}: {field} is {shown(value)}; expected a number of at least 0")
    return float(value)


def _numbers(document: Mapping[str, Any], field: str, path: Path) -> list[float]:
    values = document.get(field) or []
    if not isinstance(values, list):
        raise ValueError(f"{path}: {field} is {shown(values)}; expected a list of numbers")
    return [_number(value, field, path) for value in values]
