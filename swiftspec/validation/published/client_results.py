"""Results of load generators as rows of measured loads: vLLM's bench serve, GuideLLM, AIPerf and inference-perf."""

import math
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from swiftspec.files.csv_rows import read_table
from swiftspec.files.reading import read_foreign_json

Cells = dict[str, str]
_CLIENTS: Final = "vllm bench serve, GuideLLM, AIPerf and inference-perf"
_MEANS_ONLY: Final = "lengths, of which the means are known"


def read_results(path: Path) -> Iterator[tuple[str, Cells]]:
    """Place and cells of every measured load of a file, by the usual columns' names.

    What a client does not know of the server (`device`, `precision` ..) is taken from a CSV file of the same name
    beside it, which has one row or one for each load. Where both state a column, the CSV file counts.

    ValueError: one sentence naming the file, if it holds results of none of these clients.
    """
    content = read_foreign_json(path)
    found = list(_loads(content)) if isinstance(content, Mapping) else []
    if not found:
        raise ValueError(f"{path}: no results of a client that is known; expected those of {_CLIENTS}, or a CSV file")
    beside = path.with_suffix(".csv")
    stated = [cells for _, cells in read_table(beside)] if beside.is_file() else [{}]
    if len(stated) not in (1, len(found)):
        raise ValueError(
            f"{beside}: {len(stated)} rows; expected 1, or one for each of the {len(found)} of {path.name}"
        )
    for number, cells in enumerate(found):
        about = stated[number % len(stated)]
        where = f"{path}, load {number + 1}" if len(found) > 1 else str(path)
        yield where, cells | {name: text for name, text in about.items() if text.strip()}


def _loads(content: Mapping[str, Any]) -> Iterator[Cells]:
    if "mean_ttft_ms" in content and "request_rate" in content:
        yield _vllm(content)
    elif "input_config" in content and "request_latency" in content:
        yield _aiperf(content)
    elif "load_summary" in content and "successes" in content:
        yield _inference_perf(content)
    elif isinstance(benchmarks := content.get("benchmarks"), list):
        for benchmark in benchmarks:
            if isinstance(benchmark, Mapping) and "metrics" in benchmark:
                yield _guidellm(content, benchmark)


def _vllm(content: Mapping[str, Any]) -> Cells:
    count, done = _number(content, "num_prompts"), _number(content, "completed")
    rate, clients = _number(content, "request_rate"), _number(content, "max_concurrency")
    cells = _cells(
        model=_text(content, "model_id"),
        num_prompts=count,
        input_tokens=_ratio(_number(content, "total_input_tokens"), done),
        output_tokens=_ratio(_number(content, "total_output_tokens"), done),
        failed=None if count is None or done is None else count - done,
        **_arrivals(rate, clients, count, "constant"),
        burstiness=None if not rate else _number(content, "burstiness"),
    )
    return cells | _latencies(
        ("e2el", "ttft", "tpot"), ("mean", "median", "p90", "p99"), lambda name, word: (content, f"{word}_{name}_ms")
    )


def _aiperf(content: Mapping[str, Any]) -> Cells:
    config = content["input_config"]
    phases = [each for each in _list(config, "phases") if _text(each, "name") == "profiling"]
    load = phases[0] if phases else _value(config, "loadgen")
    count = _number(content, "request_count", "avg")
    process = _text(load, "arrival_pattern") or _text(load, "request_rate_mode")
    rate = _number(load, "request_rate")
    cells = _cells(
        model=next((name for name in _list(config, "endpoint", "model_names") if isinstance(name, str)), None),
        num_prompts=count,
        input_tokens=_number(content, "input_sequence_length", "avg"),
        output_tokens=_number(content, "output_sequence_length", "avg"),
        failed=_number(content, "error_request_count", "avg"),
        **_arrivals(rate, _number(load, "concurrency"), count, "even" if process == "constant" else "poisson"),
    )
    names = "request_latency", "time_to_first_token", "inter_token_latency"
    return cells | _latencies(names, ("avg", "p50", "p90", "p99"), lambda name, word: (content, name, word))


def _inference_perf(content: Mapping[str, Any]) -> Cells:
    summary, done = content["load_summary"], content["successes"]
    count, rate = _number(summary, "count"), _number(summary, "requested_rate")
    cells = _cells(
        num_prompts=count,
        input_tokens=_number(done, "prompt_len", "mean"),
        output_tokens=_number(done, "output_len", "mean"),
        failed=_number(content, "failures", "count"),
        **_arrivals(rate, _number(summary, "concurrency"), count, "constant"),
    )
    names = "request_latency", "time_to_first_token", "time_per_output_token"
    return cells | _latencies(
        names, ("mean", "median", "p90", "p99"), lambda name, word: (done, "latency", name, word), in_seconds=names
    )


def _guidellm(report: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Cells:
    metrics = benchmark["metrics"]
    strategy = _value(benchmark, "config", "strategy") or _value(benchmark, "args", "strategy")
    kind = _text(strategy, "type_") or _text(strategy, "kind") or ""
    count = _number(metrics, "request_totals", "total")
    clients = 1.0 if kind == "synchronous" else _number(strategy, "streams") or _number(strategy, "max_concurrency")
    rate = _number(strategy, "rate")
    cells = _cells(
        model=_text(benchmark, "config", "backend", "model")
        or _text(report, "config", "spec", "backend", "model")  # since 0.7
        or _text(report, "args", "model"),
        num_prompts=count,
        input_tokens=_number(metrics, "prompt_token_count", "successful", "mean"),
        output_tokens=_number(metrics, "output_token_count", "successful", "mean"),
        failed=_number(metrics, "request_totals", "errored"),
        **_arrivals(rate, clients if rate is None else None, count, "poisson" if kind == "poisson" else "even"),
    )
    # Its time per output token counts the first one; the latency between tokens is TPOT as it is called here.
    names = "request_latency", "time_to_first_token_ms", "inter_token_latency_ms"

    def place(name: str, word: str) -> tuple[Any, ...]:
        return (metrics, name, "successful", *(() if word == "mean" else ("percentiles",)), word)

    return cells | _latencies(names, ("mean", "p50", "p90", "p99"), place, in_seconds=names[:1])


def _latencies(
    names: tuple[str, str, str],
    words: tuple[str, str, str, str],
    place: Callable[[str, str], tuple[Any, ...]],
    *,
    in_seconds: Container[str] = (),
) -> Cells:
    """E2E, TTFT and TPOT, each with its mean, P50, P90 and P99, by a client's names and words.

    place: content and path of one. in_seconds: names of those that are not in milliseconds.
    """
    found: Cells = {}
    for column, name in zip(("e2e", "ttft", "tpot"), names, strict=True):
        for which, word in zip(("mean", "p50", "p90", "p99"), words, strict=True):
            value = _number(*place(name, word))
            unit_ms = 1e3 if name in in_seconds else 1.0
            found |= _cells(**{f"{column}_{which}_ms": None if value is None else unit_ms * value})
    return found


def _arrivals(rate: float | None, clients: float | None, count: float | None, process: str) -> dict[str, Any]:
    """A rate, perhaps with a limit on requests at once; or clients, of which there is one for each request if None."""
    if rate is None or rate <= 0:
        return {"concurrency": clients or count, "open": _MEANS_ONLY}
    limit = f"; at most {clients:.0f} requests at once, which is taken as no limit" if clients else ""
    return {
        "rate_per_s": rate,
        "arrivals": process,
        "duration_s": None if count is None else count / rate,
        "open": f"{_MEANS_ONLY}{limit}",
    }


_WHOLE: Final = ("concurrency", "num_prompts", "input_tokens", "output_tokens", "failed")


def _cells(**values: float | str | None) -> Cells:
    """Values as a row has them; lengths are means, and rounded."""
    found = {name: value for name, value in values.items() if value is not None}
    return {
        name: value if isinstance(value, str) else str(round(value)) if name in _WHOLE else repr(value)
        for name, value in found.items()
    }


def _ratio(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


def _value(content: Any, *path: str) -> Any:
    """What is at a path of names; None if anything on it is missing or no object."""
    for name in path:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


def _list(content: Any, *path: str) -> list[Any]:
    found = _value(content, *path)
    return found if isinstance(found, list) else []


def _text(content: Any, *path: str) -> str | None:
    found = _value(content, *path)
    return found if isinstance(found, str) else None


def _number(content: Any, *path: str) -> float | None:
    """A finite number; None for anything else, such as the rate `inf` of requests that are all sent at once."""
    found = _value(content, *path)
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if is_number else None
