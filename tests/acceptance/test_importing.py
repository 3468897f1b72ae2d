"""Acceptance by position from servers' metrics and from traces, by hand."""

from pathlib import Path

import numpy as np
import pytest

from swiftspec.acceptance.importing import from_sglang, from_trace, from_vllm
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
    found = from_vllm(metrics)
    assert (found.quantity, found.bonus, found.num_draft_tokens) == (Form.RATES, False, 3)
    assert found.values == pytest.approx((0.8, 0.6, 0.45))


def test_engines_are_added_up(metrics: Path) -> None:
    metrics.write_text(vllm_metrics((1000, 2000, (800, 600)), (3000, 6000, (1200, 400))))
    assert from_vllm(metrics).values == pytest.approx((0.5, 0.25))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "vllm:spec_decode_num_drafts is missing"),
        (vllm_metrics((0, 0, (0,))), "vllm:spec_decode_num_drafts is 0"),
        (vllm_metrics((10, 10, ())), r"accepted_tokens_per_pos has positions \[\]; expected 0, 1"),
        (vllm_metrics((10, 20, (8, 4, 1))), "drafts have 2.00 tokens on average and 3 positions"),
        (vllm_metrics((10, 20, (11, 4))), "position 0 was accepted more often than it was drafted"),
        (vllm_metrics((10, 20, (8, 4))).replace('"m"', '"n"', 1), "has counters of 2 models, m, n; expected one"),
        (vllm_metrics((10, 10, (8,))).replace('"0"}', '"x"}'), "position of .* is 'x'; expected 0, 1"),
        ("what is this?\n", "line 1: 'what is this.' is no sample of Prometheus' text format"),
        ("vllm:spec_decode_num_drafts_total many\n", "line 1: .* is no sample"),
    ],
)
def test_other_metrics_are_one_sentence(metrics: Path, text: str, sentence: str) -> None:
    metrics.write_text(text)
    with pytest.raises(ValueError, match=rf"^{metrics}.*{sentence}"):
        from_vllm(metrics)


def test_sglang_has_a_mean_length_only(metrics: Path) -> None:
    metrics.write_text('sglang:spec_accept_length{tp_rank="0"} 2.5\nsglang:spec_accept_length{tp_rank="1"} 3.5\n')
    assert from_sglang(metrics, num_draft_tokens=3)[:4] == (Form.LENGTH, True, 3, (3.0,))
    with pytest.raises(ValueError, match=r"spec_accept_length is 3; expected 1 to 2 for chains of 1"):
        from_sglang(metrics, num_draft_tokens=1)
    metrics.write_text("sglang:num_running_reqs 2.0\n")
    with pytest.raises(ValueError, match="sglang:spec_accept_length is missing"):
        from_sglang(metrics, num_draft_tokens=3)


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
