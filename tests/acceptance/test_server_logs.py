"""Acceptance in logs, in results of benchmarks and in answers, on what servers wrote in public."""

import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.importing import MeasuredAcceptance, from_server
from swiftspec.acceptance.records import Form

# vllm-project/vllm-ascend, issue 13640: two lines of vLLM in August 2026.
VLLM = """\
(APIServer pid=79) INFO 08-05 12:25:03 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.91, \
Accepted throughput: 0.72 tokens/s, Drafted throughput: 2.64 tokens/s, Accepted: 44 tokens, Drafted: 161 tokens, \
Per-position acceptance rate: 0.739, 0.478, 0.261, 0.174, 0.130, 0.087, 0.043, Avg Draft acceptance rate: 27.3%
(APIServer pid=79) INFO 08-05 12:25:05 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s
(APIServer pid=79) INFO 08-05 12:25:13 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.93, \
Accepted throughput: 10.60 tokens/s, Drafted throughput: 38.50 tokens/s, Accepted: 106 tokens, Drafted: 385 tokens, \
Per-position acceptance rate: 0.691, 0.418, 0.382, 0.182, 0.127, 0.073, 0.055, Avg Draft acceptance rate: 27.5%
"""
# vllm-project/vllm, pull request 24127: 0.10, n-grams.
VLLM_10 = """\
(APIServer pid=2236552) INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Draft acceptance rate: 88.8%, Mean \
acceptance length: 5.44, Accepted throughput: 4.37 tokens/s, Drafted throughput: 4.92 tokens/s, Accepted: 262 tokens, \
Drafted: 295 tokens, Per-position acceptance rate: 0.983, 0.949, 0.915, 0.881, 0.712
"""
# vllm-project/vllm, pull request 15902: the first lines of its V1 engine.
VLLM_8 = "SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens\n"
# What vllm/benchmarks/serve.py prints; the figures of vllm-project/vllm, issue 26191: EAGLE-3, 7 tokens.
BENCH = """\
---------------Inter-token Latency----------------
P99 ITL (ms):                            827.26
---------------Speculative Decoding---------------
Acceptance rate (%):                     36.21
Acceptance length:                       3.53
Drafts:                                  4816
Draft tokens:                            33712
Accepted tokens:                         12208
==================================================
"""
# ggml-org/llama.cpp, tools/server: the documentation of n-grams beside a draft.
LLAMA = """\
draft acceptance rate = 0.57576 (  171 accepted /   297 generated)
statistics ngram_simple: #calls = 15, #gen drafts = 5, #acc drafts = 5, #gen tokens = 187, #acc tokens = 73
statistics draft: #calls = 10, #gen drafts = 10, #acc drafts = 10, #gen tokens = 110, #acc tokens = 98
"""
# ggml-org/llama.cpp, pull requests 22673 and 27342: a request of May 2026, and one of September.
LLAMA_REQUEST = "draft acceptance rate = 0.69953 (  149 accepted /   213 generated)\n"
LLAMA_LENGTH = """\
4.58.584.379 I slot print_timing: id  0 | task 4827 | draft acceptance = 0.98444 (  886 accepted /   900 generated), \
mean len =  4.94
"""
# ggml-org/llama.cpp, pull request 24536.
LLAMA_RATES = """\
0.06.896.015 I slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), \
mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)
"""
LLAMA_STATISTICS = """\
0.06.896.057 I statistics     draft-eagle3: #calls(b,g,a) =    1     87     87, #gen drafts =     87, #acc drafts = \
   70, #gen tokens =    259, #acc tokens =   167, #mean acc len = 2.92, #acc rate/pos = (0.805, 0.632, 0.483), \
dur(b,g,a) = 0.005, 325.555, 0.114 ms
"""
# sgl-project/sglang, issue 11948; the last line is made up, of an idle server.
SGLANG = """\
[2025-10-22 10:27:56 TP0] Prefill batch. #new-seq: 1, #new-token: 28, #cached-token: 0, token usage: 0.00, \
#running-req: 0
[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, accept \
rate: 0.54, cuda graph: True, gen throughput (token/s): 0.39, #queue-req: 0,
[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 3, #token: 186, token usage: 0.00, accept len: 1.95, accept \
rate: 0.49, cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0,
[2025-10-22 10:27:59 TP0] Decode batch. #running-req: 0, #token: 0, token usage: 0.00, accept len: 0.00, accept \
rate: 0.00
"""
SGLANG_ARGUMENTS = (
    "server_args=ServerArgs(speculative_num_steps=3, speculative_eagle_topk={}, speculative_num_draft_tokens={})\n"
)
# vllm-project/vllm, docs/features/speculative_decoding/acceptance_metrics.md
ANSWER: dict[str, Any] = {
    "id": "one",
    "model": "m",
    "metrics": {
        "speculative_decoding": {
            "mean_acceptance_length": 1.2325581395348837,
            "draft_acceptance_rate": 0.07751937984496124,
            "acceptance_histogram": [39, 1, 0, 3],
            "num_spec_steps": 43,
            "num_accepted_draft_tokens": 10,
            "num_draft_tokens": 129,
            "num_spec_tokens": 3,
        }
    },
}
# ggml-org/llama.cpp, pull request 12603
TIMINGS = {"prompt_n": 1, "predicted_n": 200, "draft_n": 347, "draft_n_accepted": 65}
BENCH_FIELDS: dict[str, Any] = {
    "model_id": "m",
    "spec_decode_num_drafts": 5,
    "spec_decode_draft_tokens": 15,
    "spec_decode_accepted_tokens": 9,
    "spec_decode_per_position_acceptance_rates": [1.0, 0.6, 0.2],
}


def read(folder: Path, text: str, num_draft_tokens: int | None = None) -> MeasuredAcceptance:
    path = folder / "file"
    path.write_text(text)
    return from_server(path, num_draft_tokens=num_draft_tokens)


def of_length(found: MeasuredAcceptance, num_draft_tokens: int) -> float:
    """Tokens per round of chains of this length."""
    assert (found.quantity, found.bonus, found.num_draft_tokens) == (Form.LENGTH, True, num_draft_tokens)
    return found.values[0]


def test_lines_of_vllm_are_weighed_by_their_drafts(tmp_path: Path) -> None:
    found = read(tmp_path, VLLM)
    assert (found.quantity, found.num_draft_tokens, found.source) == (Form.RATES, 7, "vllm-log")
    # 23 drafts, and 55.
    assert found.values[0] == pytest.approx((23 * 0.739 + 55 * 0.691) / 78)
    assert sum(found.values) == pytest.approx(150 / 78, abs=0.005)
    assert found.note == "2 lines of vLLM's log, weighed by drafts"


def test_lines_without_counts_are_weighed_by_their_throughput(tmp_path: Path) -> None:
    text = VLLM
    for tokens in ("Accepted: 44", "Drafted: 161", "Accepted: 106", "Drafted: 385"):
        text = text.replace(f"{tokens} tokens, ", "")
    assert read(tmp_path, text).values[0] == pytest.approx((2.64 * 0.739 + 38.5 * 0.691) / 41.14, abs=1e-3)


def test_lines_with_different_lengths_are_read_as_their_mean(tmp_path: Path) -> None:
    found = read(tmp_path, VLLM + VLLM_10)
    drafts, drafted, accepted = 78 + 59, 546 + 295, 150 + 262
    assert (found.quantity, found.num_draft_tokens) == (Form.LENGTH, round(drafted / drafts))
    assert found.values[0] == pytest.approx(1 + 6 * accepted / drafted)
    assert found.note.endswith("drafts of 6.1 tokens on average, read as chains of 6")


def test_lines_of_earlier_releases_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, VLLM_10).values == pytest.approx((0.983, 0.949, 0.915, 0.881, 0.712))
    assert read(tmp_path, VLLM_8, num_draft_tokens=1).values == (2.0,)
    with pytest.raises(ValueError, match="--set num_draft_tokens is missing"):
        read(tmp_path, VLLM_8)


@pytest.mark.parametrize(("rate", "accepted", "length"), [("0.000", 0, "1.00"), ("1.000", 90, "3.00")])
def test_none_and_all_are_data(tmp_path: Path, rate: str, accepted: int, length: str) -> None:
    line = (
        f"SpecDecoding metrics: Mean acceptance length: {length}, Accepted: {accepted} tokens, Drafted: 90 tokens, "
        f"Per-position acceptance rate: {rate}, {rate}, Avg Draft acceptance rate: {accepted / 0.9:.1f}%\n"
    )
    nothing_drafted = line.replace("Drafted: 90", "Drafted: 0").replace("Accepted: 90", "Accepted: 0")
    assert read(tmp_path, line + nothing_drafted).values == (float(rate),) * 2


def test_what_vllm_bench_prints(tmp_path: Path) -> None:
    found = read(tmp_path, BENCH.replace("\n", "     \n"))
    assert of_length(found, 7) == pytest.approx(1 + 12208 / 4816)
    positions = "".join(f"\n  Position {place}:      {80 - 10 * place}.00" for place in range(3))
    text = BENCH.replace("33712", "14448").replace("12208", f"10114\nPer-position acceptance (%):{positions}")
    assert read(tmp_path, text).values == pytest.approx((0.8, 0.7, 0.6))
    assert read(tmp_path, text + text).note == "2 results of vllm bench serve"


def test_results_that_vllm_bench_saves(tmp_path: Path) -> None:
    found = read(tmp_path, json.dumps(BENCH_FIELDS, indent=1))
    assert found.values == pytest.approx((1.0, 0.6, 0.2))
    assert (found.target, found.source) == ("m", "vllm-bench")
    percent = BENCH_FIELDS | {"spec_decode_per_position_acceptance_rates": [80.0, 60.0, 40.0]}
    lines = f"{json.dumps(BENCH_FIELDS)}\n{json.dumps(percent)}\n"
    assert read(tmp_path, lines).values == pytest.approx((0.9, 0.6, 0.3))


def test_requests_of_llamacpp(tmp_path: Path) -> None:
    found = read(tmp_path, LLAMA)
    assert of_length(found, 20) == pytest.approx(1 + 20 * 171 / 297)
    assert read(tmp_path, LLAMA_REQUEST, num_draft_tokens=3).values == pytest.approx((1 + 3 * 149 / 213,))
    assert read(tmp_path, LLAMA_LENGTH).values == pytest.approx((1 + 4 * 886 / 900,))
    for text in (LLAMA_RATES, LLAMA_STATISTICS, LLAMA_RATES + LLAMA_STATISTICS):
        assert read(tmp_path, text).values == pytest.approx((0.805, 0.632, 0.483), abs=2e-3)
    with pytest.raises(ValueError, match=r"--set num_draft_tokens is missing; .* how many tokens a draft has"):
        read(tmp_path, LLAMA_REQUEST)


def test_statistics_of_llamacpp_are_of_all_drafts_so_far(tmp_path: Path) -> None:
    earlier = LLAMA_STATISTICS.replace("=   167", "=    80").replace("0.805", "0.500")
    assert read(tmp_path, earlier + LLAMA_STATISTICS) == read(tmp_path, LLAMA_STATISTICS)


def test_lines_of_sglang_are_weighed_by_requests(tmp_path: Path) -> None:
    found = read(tmp_path, SGLANG, num_draft_tokens=3)
    assert of_length(found, 3) == pytest.approx((2.17 + 3 * 1.95) / 4)
    assert read(tmp_path, SGLANG_ARGUMENTS.format(1, 4) + SGLANG).num_draft_tokens == 3
    tree = read(tmp_path, SGLANG_ARGUMENTS.format(4, 8) + SGLANG)
    assert (tree.num_draft_tokens, tree.top_k, tree.rows) == (3, 4, 8)
    with pytest.raises(ValueError, match="--set num_draft_tokens is missing"):
        read(tmp_path, SGLANG)


def test_answers_of_vllm_have_their_own_counts(tmp_path: Path) -> None:
    found = read(tmp_path, json.dumps(ANSWER))
    assert found.values == pytest.approx((4 / 43, 3 / 43, 3 / 43))
    assert found.target == "m"
    events = f"data: {json.dumps({'id': 'one', 'choices': []})}\n\ndata: {json.dumps(ANSWER)}\n\ndata: [DONE]\n"
    other = json.dumps(ANSWER | {"id": "two"})
    assert read(tmp_path, events).values == found.values
    assert read(tmp_path, f"{json.dumps(ANSWER)}\n{other}\n").note == "answers of vLLM: 2"


def test_answers_of_llamacpp(tmp_path: Path) -> None:
    expected = pytest.approx((1 + 4 * 65 / 347,))
    for text in (json.dumps({"model": "m", "timings": TIMINGS}), json.dumps(TIMINGS, indent=2)):
        assert read(tmp_path, text, num_draft_tokens=4).values == expected
    earlier = {"id": "one", "timings": TIMINGS | {"draft_n": 40}}  # of the same stream, whose counts grow
    stream = "".join(f"data: {json.dumps(event)}\n" for event in (earlier, {"id": "one", "timings": TIMINGS}))
    assert read(tmp_path, stream, num_draft_tokens=4).values == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "counts no drafts of a server; expected metrics, a log, results of vllm bench serve or answers"),
        ('{"a": 1}\nnothing\n', "line 2: not a JSON document"),
        ('{"spec_decode_num_drafts": "many"}', "spec_decode_num_drafts is 'many'; expected a number of at least 0"),
        ('{"timings": {"draft_n": 3}}', "draft_n_accepted is None; expected a number of at least 0"),
        ('{"timings": {"draft_n": 3, "draft_n_accepted": 1e999}}', "draft_n_accepted is inf; expected a number"),
        ('{"timings": {"draft_n": 3, "draft_n_accepted": 4}}', "counts more accepted tokens than drafted ones"),
        ('{"timings": {"draft_n": 0, "draft_n_accepted": 0}}', "counts 0 drafted tokens; expected those of a server"),
        (json.dumps(BENCH_FIELDS | {"spec_decode_per_position_acceptance_rates": 3}), "rates is 3; expected a list"),
        ("SpecDecoding metrics: Accepted: 0 tokens, Drafted: 0 tokens\n", "counts 0 drafted tokens"),
    ],
)
def test_what_counts_nothing_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^{tmp_path / 'file'}.*{sentence}"):
        read(tmp_path, text, num_draft_tokens=3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Decode batch, #running-req: 1, " * 10_000, "counts no drafts of a server"),
        ("statistics draft: #gen drafts = 1, " * 10_000, "counts no drafts of a server"),
        (
            "SpecDecoding metrics: Per-position acceptance rate: " + "0.5, " * 100_000,
            "num_draft_tokens is 3; .* counts 394 positions",
        ),
        ("Acceptance length: 1" + " \n" * 100_000, "counts no drafts of a server"),
        ("data: {}\n" * 50_000, "counts no drafts of a server"),
        ("# nothing\n" * 100_000 + "vllm:spec_decode_num_drafts 1\n", "counts 0 drafted tokens"),
    ],
    ids=lambda text: text[:20],
)
def test_lines_without_end_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, text, num_draft_tokens=3)


def test_rates_without_end_are_no_rates(tmp_path: Path) -> None:
    line = LLAMA_REQUEST.rstrip() + ", acceptance rate per position = (" + "1.11" * 10_000
    assert of_length(read(tmp_path, line, 3), 3) == pytest.approx(1 + 3 * 149 / 213)


def test_a_pasted_log_line_names_the_form_of_its_rates() -> None:
    with pytest.raises(ValueError, match=r"--acceptance is .*shares by position as 0\.8,0\.7,0\.6"):
        GivenAcceptance.parse(VLLM_10, field="--acceptance")
