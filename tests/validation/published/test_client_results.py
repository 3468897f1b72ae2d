"""Results of load generators as rows.

Two samples were written by the tools: by inference-perf (the stage at 16 requests/s of its own demonstration with
Llama-3.1-8B, Apache-2.0) and by vllm bench serve (four requests to Qwen3-8B, from a public report). Those of GuideLLM
and AIPerf are written by hand, after the fields that `tests/clients` reads of real ones and AIPerf's documentation.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from swiftspec.cli.app import main
from swiftspec.engines import engine_named
from swiftspec.validation.published.client_results import read_results
from swiftspec.validation.published.loads import read_load_rows
from swiftspec.validation.published.rows import MeasuredRow

SAMPLES = Path(__file__).with_name("results")
SERVER = "device,devices\nh100-sxm,1\n"


def guidellm(**strategy: Any) -> dict[str, Any]:
    def of_all(mean: float) -> dict[str, Any]:
        percentiles = {"p50": mean, "p90": 1.2 * mean, "p95": 1.3 * mean, "p99": 1.5 * mean}
        return {"successful": {"mean": mean, "median": mean, "std_dev": 0.1, "percentiles": percentiles}}

    metrics = {
        "request_totals": {"successful": 98, "errored": 0, "incomplete": 2, "total": 100},
        "request_latency": of_all(0.84),
        "time_to_first_token_ms": of_all(21.0),
        "inter_token_latency_ms": of_all(6.5),
        "time_per_output_token_ms": of_all(6.6),
        "prompt_token_count": of_all(256.0),
        "output_token_count": of_all(127.6),
    }
    backend = {"target": "http://localhost:8000", "model": "Qwen/Qwen3-8B"}
    return {"config": {"strategy": strategy, "backend": backend}, "metrics": metrics}


AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 13.2},
    "request_latency": {"unit": "ms", "avg": 655.0, "p50": 640.0, "p90": 700.0, "p95": 720.0, "p99": 760.0},
    "time_to_first_token": {"unit": "ms", "avg": 18.0, "p50": 17.0, "p90": 22.0, "p95": 24.0, "p99": 31.0},
    "inter_token_latency": {"unit": "ms", "avg": 6.6, "p50": 6.5, "p90": 6.9, "p95": 7.1, "p99": 7.4},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "output_sequence_length": {"unit": "tokens", "avg": 96.85},
    "request_count": {"unit": "requests", "avg": 200.0},
    "error_request_count": None,
    "input_config": {
        "endpoint": {"model_names": ["Qwen/Qwen3-8B"], "type": "chat", "streaming": True},
        "loadgen": {"concurrency": 8, "request_rate_mode": "concurrency_burst", "request_count": 200},
    },
}


def written(folder: Path, content: object, beside: str = SERVER) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(content))
    path.with_suffix(".csv").write_text(beside)
    return path


def rows(path: Path) -> list[MeasuredRow]:
    found = [row for _, row in read_load_rows(path, engine=engine_named("vllm@0.15"))]
    assert all(isinstance(row, MeasuredRow) for row in found), found
    return [row for row in found if isinstance(row, MeasuredRow)]


def test_vllms_own_result_is_a_row(tmp_path: Path) -> None:
    path = Path(copy(SAMPLES / "vllm_bench_serve.json", tmp_path / "results.json"))
    path.with_suffix(".csv").write_text(SERVER)
    (row,) = rows(path)
    assert (row.model, row.device.name, row.requests.num_clients) == ("qwen3-8b", "h100-sxm", 1)
    assert set(row.requests.prompt_tokens.tolist()) == {72}
    assert row.requests.output_tokens.tolist() == [16] * 4
    assert row.cells["e2e_mean_ms"] == "189.00654336903244"
    assert row.cells["ttft_p50_ms"] == "20.076504559256136"
    assert "tpot_mean_ms" not in row.cells, "it was not asked for"
    assert row.gaps == ("lengths, of which the means are known",)


def test_a_rate_of_vllm_has_its_burstiness(tmp_path: Path) -> None:
    content = json.loads((SAMPLES / "vllm_bench_serve.json").read_text())
    content |= {"request_rate": 2.0, "burstiness": 0.25, "num_prompts": 4000, "completed": 4000}
    content |= {"total_input_tokens": 288_000, "total_output_tokens": 64_000, "max_concurrency": None}
    (row,) = rows(written(tmp_path, content))
    arrivals = row.requests.arrival_s
    assert (len(arrivals), arrivals[-1]) == (4000, pytest.approx(2000.0))
    gaps = arrivals[1:] - arrivals[:-1]
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.1), "1/sqrt(0.25)"
    (limited,) = rows(written(tmp_path, content | {"max_concurrency": 16}))
    assert any(gap.startswith("at most 16 requests at once") for gap in limited.gaps)


def test_a_stage_of_inference_perf_is_a_row_with_the_model_from_beside(tmp_path: Path) -> None:
    path = Path(copy(SAMPLES / "inference_perf_stage.json", tmp_path / "stage_3_lifecycle_metrics.json"))
    path.with_suffix(".csv").write_text(
        "model,device,devices,system_prompt_tokens,question_tokens\nllama-3.1-8b,h100,1,100,118\n"
    )
    (row,) = rows(path)
    assert (len(row.requests.arrival_s), row.requests.arrival_s[-1]) == (960, pytest.approx(60.0))
    assert set(row.requests.prompt_tokens.tolist()) == {218}
    assert row.requests.segments[0] == [("system", 100)], "what the client does not say is stated beside it"
    assert float(row.cells["e2e_mean_ms"]) == pytest.approx(7630.229)
    assert float(row.cells["tpot_mean_ms"]) == pytest.approx(17.52666, rel=1e-5)
    assert "e2e_p99_ms" not in row.cells


def test_every_benchmark_of_guidellm_is_a_row(tmp_path: Path) -> None:
    strategies: list[dict[str, Any]] = [
        {"type_": "synchronous", "worker_count": 1},
        {"type_": "concurrent", "streams": 8, "max_concurrency": 8},
        {"type_": "constant", "rate": 2.0, "max_concurrency": 10240},
        {"type_": "poisson", "rate": 4.5, "max_concurrency": 10240},
    ]
    report = {"metadata": {"version": 2}, "benchmarks": [guidellm(**each) for each in strategies]}
    alone, eight, even, poisson = rows(written(tmp_path, report))
    assert (alone.requests.num_clients, eight.requests.num_clients, even.requests.num_clients) == (1, 8, None)
    assert even.requests.arrival_s[:3].tolist() == [0.0, 0.5, 1.0]
    assert len(poisson.requests.arrival_s) == 100
    assert (eight.cells["tpot_mean_ms"], eight.cells["e2e_mean_ms"]) == ("6.5", "840.0")
    assert abs(eight.requests.output_tokens.mean() / 128 - 1) < 0.03, "of 8 clients, which do not stay in step"


def test_aiperf_has_clients_or_a_rate(tmp_path: Path) -> None:
    (closed,) = rows(written(tmp_path, AIPERF))
    assert (closed.model, closed.requests.num_clients, len(closed.requests.arrival_s)) == ("qwen3-8b", 8, 200)
    assert closed.cells["tpot_p99_ms"] == "7.4"
    phases = [{"name": "warmup", "concurrency": 1}, {"name": "profiling", "request_rate": 4.0}]
    config = AIPERF["input_config"]
    assert isinstance(config, dict)
    newer = AIPERF | {"input_config": {"endpoint": config["endpoint"], "phases": phases}}
    (rate,) = rows(written(tmp_path, newer))
    assert rate.requests.num_clients is None
    assert len(rate.requests.arrival_s) == 200


def test_rows_beside_are_one_for_all_or_one_each(tmp_path: Path) -> None:
    report = {"benchmarks": [guidellm(type_="concurrent", streams=each) for each in (1, 2)]}
    first, second = rows(written(tmp_path, report, "device,precision\nh100,bf16\nh200,fp8\n"))
    assert (first.device.name, second.device.name, second.quant) == ("h100-sxm", "h200-sxm", "fp8")
    with pytest.raises(ValueError, match=r"results\.csv: 3 rows; expected 1, or one for each of the 2"):
        rows(written(tmp_path, report, "device\nh100\nh100\nh100\n"))


def test_results_are_predicted_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, AIPERF)
    assert main(["validate", "--loads", str(path), "--engine", "vllm@0.15", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["low_tpot_mean_ms"] < row["predicted_tpot_mean_ms"] < row["high_tpot_mean_ms"]
    assert row["assumed"] == ["lengths, of which the means are known"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "no results of a client that is known"),
        ({"benchmarks": [1, {}]}, "no results of a client that is known"),
        ({"mean_ttft_ms": [], "request_rate": {}}, r"column model is missing; .* in results\.csv beside it"),
        (AIPERF | {"request_count": {"avg": "many"}, "input_sequence_length": None}, "input_tokens is missing"),
        (AIPERF | {"request_latency": {"avg": -3.0}}, r"row 1: e2e_mean_ms is -3\.0; expected more than 0"),
    ],
)
def test_what_is_no_result_is_one_sentence(
    tmp_path: Path, content: object, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["validate", "--loads", str(written(tmp_path, content)), "--engine", "vllm@0.15"])
    said = " ".join("".join(capsys.readouterr()).split())
    assert code in (0, 2)
    assert re.search(says, said), said


def test_foreign_values_never_raise_anything_else(tmp_path: Path) -> None:
    odd: list[object] = [None, True, -1, 1e308, "inf", [], {}, [[]], {"avg": {}}]
    for name in AIPERF:
        for value in odd:
            path = written(tmp_path, AIPERF | {name: value})
            with suppress(ValueError):  # one sentence
                for _, cells in read_results(path):
                    assert all(isinstance(text, str) for text in cells.values())
