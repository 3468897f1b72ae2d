"""Acceptance by position from servers' metrics and from traces, by hand."""

from pathlib import Path

import numpy as np
import pytest

from swiftspec.acceptance.importing import from_server, from_trace
from swiftspec.acceptance.records import Form
from swiftspec.acceptance.synthesis import synthesise_positions
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses, TracedPrompt
from swiftspec.files.document import ModelRef
from swiftspec.policies import DraftKind
from tests.artifacts.test_trace import ORIGIN

MODEL = ModelRef(model="m", dtype="float32")
SAMPLE = 'vllm:spec_decode_num_{counter}{{engine="{engine}",model_name="m"{more}}} {value}'


def vllm_metrics(*engines: tuple[float, float, tuple[float, ...]]) -> str:
    """Drafts, drafted tokens and accepted tokens by position of every engine, as vLLM writes them."""
    lines = ["# TYPE vllm:spec_decode_num_drafts_total counter", "python_info 1.0"]
    for number, (drafts, tokens, accepted) in enumerate(engines):

        def add(counter: str, value: float, more: str = "", engine: int = number) -> None:
            lines.append(SAMPLE.format(counter=counter, engine=engine, more=more, value=value))

        add("drafts_total", drafts)
        add("drafts_created", 1.7e9)
        add("draft_tokens_total", tokens)
        add("accepted_tokens_total", sum(accepted))
        for position, value in enumerate(accepted):
            add("accepted_tokens_per_pos_total", value, f',position="{position}"')
    return "\n".join(lines) + "\n"


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "metrics.txt"


def test_rates_of_vllm_are_accepted_tokens_over_drafts(metrics: Path) -> None:
    metrics.write_text(vllm_metrics((1000, 3000, (800, 600, 450))))
    found = from_server(metrics)
    assert (found.quantity, found.bonus, found.num_draft_tokens) == (Form.RATES, False, 3)
    assert found.values == pytest.approx((0.8, 0.6, 0.45))


def test_engines_are_added_up(metrics: Path) -> None:
    metrics.write_text(vllm_metrics((1000, 2000, (800, 600)), (3000, 6000, (1200, 400))))
    assert from_server(metrics).values == pytest.approx((0.5, 0.25))


def test_eight_engines_of_one_server_are_added_up(metrics: Path) -> None:
    # vllm-project/vllm, pull request 24049: drafts of eight data-parallel engines.
    drafts = (22, 15, 29, 20, 25, 24, 27, 26)
    metrics.write_text(vllm_metrics(*((number, 2 * number, (number - 5, 10)) for number in drafts)))
    found = from_server(metrics)
    assert found.values == pytest.approx(((188 - 40) / 188, 80 / 188))
    assert found.note == "188 drafts counted by vLLM"


@pytest.mark.parametrize("server", ["llamacpp", "swiftspec"])
def test_counters_of_others_have_the_same_names(metrics: Path, server: str) -> None:
    metrics.write_text(vllm_metrics((40, 80, (30, 20)), (60, 120, (45, 25))).replace("vllm:", f"{server}:"))
    found = from_server(metrics)
    assert found.source == f"{server}-metrics"
    assert found.values == pytest.approx((0.75, 0.45))


@pytest.mark.parametrize("target", ["Qwen/Qwen3-32B", "qwen3-32b"])
def test_one_of_several_models_is_named(metrics: Path, target: str) -> None:
    one, other = vllm_metrics((10, 20, (8, 4))), vllm_metrics((10, 20, (5, 1)))
    metrics.write_text(one.replace('"m"', '"Qwen/Qwen3-32B"') + other.replace('"m"', '"Qwen/Qwen3-8B"'))
    found = from_server(metrics, target=target)
    assert found.target == "Qwen/Qwen3-32B"
    assert found.values == pytest.approx((0.8, 0.4))
    for wrong in ("", "qwen3"):
        with pytest.raises(
            ValueError, match=r"counts drafts of Qwen/Qwen3-32B, Qwen/Qwen3-8B; expected one .*--target"
        ):
            from_server(metrics, target=wrong)


def test_drafts_of_varying_lengths_are_read_as_their_mean(metrics: Path) -> None:
    metrics.write_text(vllm_metrics((10, 23, (8, 4, 1))))
    found = from_server(metrics)
    assert found[:3] == (Form.LENGTH, True, 2)
    assert found.values == pytest.approx((1 + 2 * 13 / 23,))
    assert found.note == "10 drafts counted by vLLM, drafts of 2.3 tokens on average, read as chains of 2"
    assert from_server(metrics, num_draft_tokens=3).num_draft_tokens == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "counts no drafts of a server; expected metrics, a log, .* --acceptance 0.7,0.45"),
        ("what is this?\n", "counts no drafts of a server; expected metrics, a log"),
        ("vllm:num_requests_running 1\n", "vllm:spec_decode_num_drafts is missing or 0"),
        (vllm_metrics((0, 0, (0,))), "vllm:spec_decode_num_drafts is missing or 0"),
        (vllm_metrics((10, 20, (8, 4))).replace('"1"}', '"2"}'), r"per_pos has positions \['0', '2'\]; expected 0, 1"),
        (vllm_metrics((10, 20, (11, 4))), "counts more accepted tokens than drafted ones"),
        (vllm_metrics((10, 0, (0,))), "counts 0 drafted tokens; expected those of a server that has speculated"),
        (vllm_metrics((10, 30, (8, 4))), "counts 3.0 tokens a draft; expected at most its 2 positions"),
        (vllm_metrics((10, 10, (8,))).replace('"0"}', '"x"}'), r"per_pos has positions \['x'\]; expected 0, 1"),
        ("vllm:spec_decode_num_drafts_total many\n", "line 1: .* is no sample of Prometheus' text format"),
    ],
)
def test_other_metrics_are_one_sentence(metrics: Path, text: str, sentence: str) -> None:
    metrics.write_text(text)
    with pytest.raises(ValueError, match=rf"^{metrics}.*{sentence}"):
        from_server(metrics)


def sglang_metrics(*ranks: float, steps: int = 0, rows: int = 0, labels: str = 'engine_type="unified"') -> str:
    """Gauges of data-parallel ranks, with the labels that SGLang's `metrics_collector.py` gives them."""
    lines = []
    for rank, length in enumerate(ranks):
        own = f'{{dp_rank="{rank}",{labels},model_name="m",tp_rank="0"}}'
        gauges = {"accept_length": length, "num_steps": steps, "num_draft_tokens": rows}
        lines += [
            f"sglang:spec_{name}{own} {float(value)}" for name, value in gauges.items() if value or name[0] == "a"
        ]
    return "\n".join(lines) + "\n"


def test_sglang_has_a_mean_length_only(metrics: Path) -> None:
    metrics.write_text(sglang_metrics(2.5, 3.5))
    assert from_server(metrics, num_draft_tokens=3)[:4] == (Form.LENGTH, True, 3, (3.0,))
    with pytest.raises(ValueError, match=r"rounds have 3 tokens; expected 1 to 2 of chains of 1"):
        from_server(metrics, num_draft_tokens=1)
    with pytest.raises(ValueError, match=r"--set num_draft_tokens is missing; .* does not tell the length of chains"):
        from_server(metrics)
    metrics.write_text("sglang:num_running_reqs 2.0\n")
    with pytest.raises(ValueError, match="sglang:spec_accept_length is missing or 0"):
        from_server(metrics, num_draft_tokens=3)


def test_an_idle_rank_of_sglang_is_left_out(metrics: Path) -> None:
    metrics.write_text(sglang_metrics(2.9, 0.0, 3.1))
    found = from_server(metrics, num_draft_tokens=3)
    assert found.values == pytest.approx((3.0,))
    assert found.note.endswith(", mean of 2 ranks that are not idle, of 3")
    metrics.write_text(sglang_metrics(0.0, 0.0) + "sglang:spec_num_steps +Inf\n")
    with pytest.raises(ValueError, match="spec_accept_length is missing or 0; expected an SGLang that has speculated"):
        from_server(metrics, num_draft_tokens=3)


def test_gauges_of_the_drafts_own_engine_are_left_out(metrics: Path) -> None:
    own = sglang_metrics(2.7, labels='engine_type="draft"').replace('"m"', '"draft-model"')
    metrics.write_text(own + sglang_metrics(2.8))
    assert from_server(metrics, num_draft_tokens=3).values == (2.8,)


@pytest.mark.parametrize(
    ("steps", "rows", "top_k", "expected"),
    [
        (3, 4, None, (3, 1, None)),  # a chain, and the last token
        (1, 7, None, (6, 1, None)),  # a block
        (3, 8, 4, (3, 4, 8)),
    ],
)
def test_sglang_states_the_shape(
    metrics: Path, steps: int, rows: int, top_k: int | None, expected: tuple[int, int, int | None]
) -> None:
    metrics.write_text(sglang_metrics(2.5, steps=steps, rows=rows))
    found = from_server(metrics, top_k=top_k)
    assert (found.num_draft_tokens, found.top_k, found.rows) == expected
    with pytest.raises(ValueError, match=f"--set num_draft_tokens is 9; .* states {expected[0]}"):
        from_server(metrics, num_draft_tokens=9)


def test_a_trees_width_is_asked_for(metrics: Path) -> None:
    metrics.write_text(sglang_metrics(2.5, steps=3, rows=8))
    with pytest.raises(ValueError, match=r"--set top_k is missing; .* states trees of 3 steps and 8 rows"):
        from_server(metrics)


def trace_of(hits: list[int], *, ahead: list[list[int]] | None = None) -> AcceptanceTrace:
    """One output whose tokens a draft guesses (1) or not (0)."""
    tokens = np.arange(len(hits), dtype=np.int32) + 10
    logprobs = np.zeros((len(hits), 1), np.float32)

    def guesses(right: np.ndarray) -> np.ndarray:
        return np.where(right, tokens.reshape(-1, *[1] * (right.ndim - 1)), 0).astype(np.int32)

    first = guesses(np.array(hits) == 1)[:, None]
    far = None
    if ahead is not None:
        found = guesses(np.array(ahead) == 1)[:, :, None]
        far = Guesses(found, np.zeros(found.shape, np.float32))
    prompt = TracedPrompt(
        prompt_id="p",
        prompt_tokens=np.zeros(1, np.int32),
        target_tokens=tokens,
        guesses={Guesser.DRAFT: Guesses(first, logprobs)},
        ranks=1 - np.array(hits),
        ended=False,
        ahead=far,
    )
    return AcceptanceTrace(origin=ORIGIN, source="recorded", target=MODEL, draft=MODEL, prompts=(prompt,))


def test_rates_of_a_trace_are_those_of_its_chains() -> None:
    # Chains of two: 1 1 (and 1 as the bonus token), 0, 1 0, 0; and 1 at the end is too short for another.
    found = from_trace(trace_of([1, 1, 1, 0, 1, 0, 0, 1]), num_draft_tokens=2)
    assert found.values == pytest.approx((2 / 4, 1 / 4))
    assert found.note == "4 rounds of chains on a trace"


def test_later_tokens_of_a_chain_are_guessed_from_a_distance() -> None:
    # All are known from near; from one token away only the second, and from farther away none.
    trace = trace_of([1] * 7, ahead=[[0, 0], [1, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0]])
    # 0 1 and no 2, which is the bonus token; then 3 and no 4: two rounds of three tokens.
    assert from_trace(trace, num_draft_tokens=3).values == pytest.approx((1.0, 0.5, 0.0))


def test_a_chain_longer_than_every_output_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens is 3; the trace has no output of so many tokens"):
        from_trace(trace_of([1, 1]), num_draft_tokens=3)


@pytest.mark.parametrize("rates", [(0.9, 0.8, 0.6, 0.3), (0.5, 0.65, 0.75, 0.85), (0.8,)])
@pytest.mark.parametrize("length", [2, 4])
def test_chains_of_a_synthesised_trace_have_its_rates(rates: tuple[float, ...], length: int) -> None:
    trace = synthesise_positions(
        rates, kind=DraftKind.HEAD, num_prompts=96, prompt_length=2, num_tokens=256, seed=0, target=MODEL, draft=MODEL
    )
    found = np.array((1.0, *from_trace(trace, num_draft_tokens=length).values))
    expected = [rates[min(position, len(rates) - 1)] for position in range(length)]
    # A standard error of 0.8 % at most: thousands of rounds reach every position.
    assert found[1:] / found[:-1] == pytest.approx(expected, abs=0.03)
    assert (trace.draft_kind, trace.num_ahead) == (DraftKind.HEAD, len(rates) - 1)


def test_impossible_rates_are_refused() -> None:
    for rates, sentence in (((), "rates is empty"), ((0.5, 1.5), "rates has 1.5; expected shares from 0 to 1")):
        with pytest.raises(ValueError, match=sentence):
            synthesise_positions(
                rates,
                kind=DraftKind.HEAD,
                num_prompts=1,
                prompt_length=1,
                num_tokens=1,
                seed=0,
                target=MODEL,
                draft=MODEL,
            )
