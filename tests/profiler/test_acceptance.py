import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from swiftspec.artifacts.prompts import evenly
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser
from swiftspec.policies import DraftKind
from swiftspec.profiler.acceptance import record_trace
from swiftspec.profiler.guesses_ahead import NUM_AHEAD
from tests.engine.pairs import VOCAB_SIZE, references, with_mask_token, write_pair

PROMPTS = (("a", (5, 17, 3)), ("b", (9,)), ("c", tuple(range(1, 90))))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"), architecture="llama")


def record(
    models: tuple[Path, Path],
    max_new_tokens: int,
    *,
    outputs: Sequence[Sequence[int]] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> AcceptanceTrace:
    target, draft = references(models)
    return record_trace(
        target=target,
        draft=draft,
        prompts=PROMPTS,
        max_new_tokens=max_new_tokens,
        num_candidates=5,
        num_threads=1,
        progress=lambda *_: None,
        outputs=outputs,
        stop=stop,
    )


def test_ranks_and_candidates_are_those_of_a_plain_forward(models: tuple[Path, Path]) -> None:
    trace = record(models, 100)
    target, draft = (AutoModelForCausalLM.from_pretrained(model).eval() for model in models)
    for (_, prompt), traced in zip(PROMPTS, trace.prompts, strict=True):
        output = torch.tensor(traced.target_tokens.tolist())
        text = torch.cat([torch.tensor(prompt), output])[None]
        with torch.no_grad():
            wanted, logits = (model(text).logits[0, len(prompt) - 1 : -1] for model in (target, draft))
        assert wanted.argmax(-1).tolist() == output.tolist()
        assert logits.topk(5).indices.tolist() == traced.draft.tokens.tolist()
        np.testing.assert_allclose(logits.log_softmax(-1).topk(5).values, traced.draft.logprobs, atol=1e-4)
        ranks = (logits > logits.gather(1, output[:, None])).sum(-1)
        assert ranks.tolist() == traced.ranks.tolist()


def test_an_end_of_sequence_ends_a_prompt(models: tuple[Path, Path]) -> None:
    for traced in record(models, 150).prompts:
        tokens = traced.target_tokens.tolist()
        assert traced.ended == (tokens[-1] == 0)
        assert 0 not in tokens[:-1]
        assert traced.ended or len(tokens) == 150


def test_a_prompt_over_the_context_names_both_numbers(models: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="prompt c: 89 tokens with 200 output tokens exceed the target's context"):
        record(models, 200)


def test_a_known_output_is_traced_as_if_it_had_been_decoded(models: tuple[Path, Path]) -> None:
    decoded = record(models, 40)
    outputs = [prompt.target_tokens.tolist() for prompt in decoded.prompts]
    again = record(models, 40, outputs=outputs)
    for before, after in zip(decoded.prompts, again.prompts, strict=True):
        assert after.target_tokens.tolist() == before.target_tokens.tolist()
        assert after.ranks.tolist() == before.ranks.tolist()
        assert after.ended == before.ended
        for guesser in Guesser:
            for one, other in zip(before.guesses[guesser], after.guesses[guesser], strict=True):
                np.testing.assert_array_equal(one, other)


def test_an_output_that_is_not_the_targets_own_is_traced_all_the_same(models: tuple[Path, Path]) -> None:
    outputs = [[3, 1, 4, 1, 5]] * len(PROMPTS)
    for prompt in record(models, 5, outputs=outputs).prompts:
        assert prompt.target_tokens.tolist() == outputs[0]
        assert len(prompt.draft.tokens) == 5


@pytest.mark.parametrize("damaged", [0, 1])
def test_logits_that_are_no_numbers_are_refused(models: tuple[Path, Path], tmp_path: Path, damaged: int) -> None:
    copies = [shutil.copytree(model, tmp_path / model.name) for model in models]
    weights = load_file(copies[damaged] / "model.safetensors")
    weights["lm_head.weight"].fill_(float("nan"))
    save_file(weights, copies[damaged] / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"^{copies[damaged]}: its logits are not finite for prompt a; "):
        record((copies[0], copies[1]), 4)


def test_the_cache_is_as_long_as_the_prompts_ask_for(models: tuple[Path, Path], tmp_path: Path) -> None:
    """A context of 10^12 positions is believed, and no memory taken for it."""
    copies = [shutil.copytree(model, tmp_path / model.name) for model in models]
    for copy in copies:
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**12}))
    expected, found = record(models, 8), record((copies[0], copies[1]), 8)
    for one, other in zip(expected.prompts, found.prompts, strict=True):
        np.testing.assert_array_equal(one.target_tokens, other.target_tokens)


def test_a_trace_that_could_not_be_read_again_is_not_begun(models: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"--max-new-tokens is 100000000 for 3 prompts; a trace has room for"):
        record(models, 10**8)


def test_guesses_ahead_are_those_of_a_plain_forward_over_masks(models: tuple[Path, Path], tmp_path: Path) -> None:
    copies = with_mask_token((models[0], shutil.copytree(models[1], tmp_path / "draft")))
    trace, draft = record(copies, 20), AutoModelForCausalLM.from_pretrained(copies[1]).eval()
    assert (trace.draft_kind, trace.num_ahead) == (DraftKind.PARALLEL, NUM_AHEAD)
    for (_, prompt), traced in zip(PROMPTS, trace.prompts, strict=True):
        assert traced.ahead is not None
        text = [*prompt, *traced.target_tokens.tolist()]
        for index in range(len(traced.target_tokens)):
            for masks in range(1, NUM_AHEAD + 1):
                known = text[: max(0, len(prompt) + index - masks)]
                if not known:  # the guess without masks stands in
                    expected, logprobs = traced.draft.tokens[index], traced.draft.logprobs[index]
                else:
                    with torch.no_grad():
                        logits = draft(torch.tensor([[*known, *[VOCAB_SIZE - 1] * masks]])).logits[0, -1]
                    best = logits.log_softmax(-1).topk(5)
                    expected, logprobs = best.indices.numpy(), best.values.numpy()
                assert traced.ahead.tokens[index, masks - 1].tolist() == expected.tolist()
                np.testing.assert_allclose(traced.ahead.logprobs[index, masks - 1], logprobs, atol=1e-4)


def test_a_serial_draft_has_no_guesses_ahead(models: tuple[Path, Path]) -> None:
    trace = record(models, 4)
    assert (trace.draft_kind, trace.num_ahead) == (DraftKind.SERIAL, 0)


def test_prompts_until_time_runs_out_are_spread_over_all(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert evenly(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(evenly(11)) == list(range(11))
    monkeypatch.setattr("swiftspec.profiler.acceptance._LEAST_PROMPTS", 2)
    assert [traced.prompt_id for traced in record(models, 8, stop=lambda: True).prompts] == ["a", "c"]
    assert "2 of 3 prompts were traced" in caplog.text
