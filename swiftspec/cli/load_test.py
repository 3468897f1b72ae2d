"""`swiftspec loadtest`: a load over HTTP, and what its clients saw."""

from pathlib import Path

from swiftspec.api.load_testing import load_test as measure
from swiftspec.artifacts.load_report import LoadTest
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.cli.outputs import check_files
from swiftspec.cli.sections import attained, show_latencies, throughput
from swiftspec.cli.verbs.data import LoadTestFlags
from swiftspec.files.reading import read_input
from swiftspec.reports.formatting import count, milliseconds

_LATE_S = 0.01
_MOST_BYTES = 1 << 20


def load_test(asked: LoadTestFlags) -> LoadTest:
    check_files(asked)
    test = measure(
        asked.url,
        Workload.load(asked.load),
        asked.prompts,
        api_key=read_api_key(asked.api_key_file),
        seed=asked.seed,
        limit=asked.num_prompts,
        stages=console.progress,
    )
    _show(test)
    if asked.json is not None:
        test.save(asked.json)
    return test


def read_api_key(file: Path | None) -> str:
    """The first key of a file, if there is one. ValueError if it is empty."""
    return "" if file is None else read_api_keys(file)[0]


def read_api_keys(file: Path) -> tuple[str, ...]:
    """Keys of a file, at least one. ValueError if it has none."""
    lines = read_input(file, most_bytes=_MOST_BYTES).decode(errors="replace").splitlines()
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ValueError(f"--api-key-file {file}: no key in it; expected one a line")
    return keys


def _show(test: LoadTest) -> None:
    metrics = test.metrics
    latencies = {"TTFT": metrics.ttft_s, "TPOT": metrics.tpot_s, "between chunks": metrics.itl_s, "E2E": metrics.e2el_s}
    show_latencies("Latencies in ms, as the clients saw them", latencies)
    per_chunk = ("tokens per chunk", f"{test.tokens_per_iteration:.2f}")
    console.table("Load", ("figure", "value"), [*throughput(metrics), per_chunk, *attained(metrics)])
    for sentence, number in sorted(test.failures.items(), key=lambda failure: -failure[1]):
        console.note(f"{count(number, 'request')} failed: {sentence}")
    if test.late_s > _LATE_S:
        console.note(f"requests were sent up to {milliseconds(test.late_s)} ms late: this machine was overloaded")
