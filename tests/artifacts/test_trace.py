import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses, SamplingParams, TracedPrompt
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies import DraftKind

ORIGIN = Origin(command="swiftspec trace", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")
Arrays = dict[str, Any]


def prompt(prompt_id: str, ranks: list[int], *, ended: bool = False) -> TracedPrompt:
    num_tokens = len(ranks)
    rng = np.random.default_rng(num_tokens)

    def guesses(num_candidates: int) -> Guesses:
        logprobs = -np.sort(rng.gamma(1.0, 2.0, (num_tokens, num_candidates)), axis=1)
        tokens = rng.integers(0, 99, (num_tokens, num_candidates), dtype=np.int32)
        return Guesses(tokens, logprobs.astype(np.float32))

    return TracedPrompt(
        prompt_id=prompt_id,
        prompt_tokens=np.arange(7, dtype=np.int32),
        target_tokens=rng.integers(0, 99, num_tokens, dtype=np.int32),
        guesses={Guesser.DRAFT: guesses(3), Guesser.EXIT: guesses(2)},
        ranks=np.array(ranks, np.int32),
        ended=ended,
    )


def trace(*prompts: TracedPrompt) -> AcceptanceTrace:
    return AcceptanceTrace(
        origin=ORIGIN,
        source="recorded",
        target=ModelRef(model="demo/target", inflate="layers=24", dtype="bfloat16"),
        draft=ModelRef(model="demo/draft", dtype="float32"),
        prompts=prompts,
    )


TRACE = trace(prompt("a", [0, 0, 1, 40]), prompt("b", []), prompt("c", [0, 2, 0, 1], ended=True))


def test_how_its_output_was_drawn_is_kept(tmp_path: Path) -> None:
    drawn = replace(TRACE, sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=2**48))
    drawn.save(tmp_path / "trace.npz")
    assert AcceptanceTrace.load(tmp_path / "trace.npz").sampling == drawn.sampling
    assert str(drawn.sampling) == f"temperature 0.7, top_p 0.9, seed {2**48}"
    assert str(TRACE.sampling) == "greedy"
    assert drawn.sampling.of_prompt(3)["seed"] == 2**48 + 3


def test_saved_trace_loads_as_it_was(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "trace.npz")
    loaded = AcceptanceTrace.load(tmp_path / "trace.npz")
    assert (loaded.origin, loaded.source, loaded.target, loaded.draft) == (
        *(TRACE.origin, TRACE.source),
        *(TRACE.target, TRACE.draft),
    )
    assert len(loaded.prompts) == len(TRACE.prompts)
    for found, saved in zip(loaded.prompts, TRACE.prompts, strict=True):
        assert (found.prompt_id, found.prompt_length, found.ended) == (saved.prompt_id, 7, saved.ended)
        assert found.guesses.keys() == {Guesser.DRAFT, Guesser.EXIT}
        for before, after in zip(arrays_of(saved), arrays_of(found), strict=True):
            np.testing.assert_array_equal(after, before)
            assert after.dtype == before.dtype


def arrays_of(prompt: TracedPrompt) -> list[np.ndarray]:
    guesses = [array for guesser in sorted(prompt.guesses) for array in prompt.guesses[guesser]]
    return [prompt.prompt_tokens, prompt.target_tokens, prompt.ranks, *guesses]


def test_guessers_are_those_that_every_prompt_has() -> None:
    without = replace(TRACE.prompts[0], guesses={Guesser.DRAFT: TRACE.prompts[0].draft})
    assert TRACE.guessers == {Guesser.DRAFT, Guesser.EXIT}
    assert trace(without, *TRACE.prompts[1:]).guessers == {Guesser.DRAFT}


def test_rank_acceptance_is_the_share_of_tokens_at_each_rank() -> None:
    assert TRACE.num_tokens == 8
    assert TRACE.rank_acceptance(4) == [4 / 8, 2 / 8, 1 / 8, 0.0]


def test_trace_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="prompts is empty; a trace needs at least one"):
        trace()


def test_failed_save_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        TRACE.save(tmp_path / "absent" / "trace.npz")
    assert os.listdir(tmp_path) == []


def rewritten(tmp_path: Path, change: Callable[[Arrays], object]) -> Path:
    """A saved trace whose arrays were changed."""
    path = tmp_path / "trace.npz"
    TRACE.save(path)
    with np.load(path) as archive:
        arrays: Arrays = {name: archive[name] for name in archive.files}
    change(arrays)
    np.savez(path, **arrays)
    return path


def about(arrays: Arrays, **changes: object) -> None:
    arrays["about"] = np.array(json.dumps(json.loads(str(arrays["about"])) | changes))


def put(name: str, index: int | tuple[int, int], value: float) -> Callable[[Arrays], object]:
    return lambda arrays: arrays[name].__setitem__(index, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("ranks"), "ranks is missing"),
        (lambda a: a.pop("about"), "about is missing"),
        (lambda a: a.update(about=np.array("{")), "about: not a JSON document"),
        (lambda a: a.update(about=np.array("[]")), r"schema is \[\]; expected 'swiftspec.acceptance-trace'"),
        (lambda a: about(a, schema="swiftspec.plan"), "schema is 'swiftspec.plan'; expected"),
        (lambda a: about(a, version=9), "version of swiftspec.acceptance-trace is 9; this swiftspec reads version 2"),
        (lambda a: about(a, prompts=[]), r"prompts is \[\]; tuple should have at least 1 item"),
        (lambda a: about(a, prompts=[{"prompt_id": "a"}]), r"prompts\[0\].ended is missing"),
        (lambda a: about(a, target={"model": "m"}), "target.dtype is missing"),
        (lambda a: about(a, colour="red"), "colour is 'red'; extra inputs are not permitted"),
        (lambda a: a.update(lengths=np.array([4, 4])), r"lengths is \[4, 4\]; expected 3 token counts of 0 or more"),
        (
            lambda a: a.update(prompt_lengths=np.array([7, 7, 0])),
            r"prompt_lengths is .*; expected 3 token counts of 1 or",
        ),
        (lambda a: a.update(prompt_tokens=a["prompt_tokens"][1:]), r"prompt_tokens has shape \(20,\); expected"),
        (lambda a: a.update(lengths=np.array([9, -5, 4])), r"lengths is \[9, -5, 4\]; expected"),
        (lambda a: a.update(lengths=np.array([4, 0, 5])), r"target_tokens has shape \(8,\); expected 1 .* 9 rows"),
        (lambda a: a.update(ranks=a["ranks"][:-1]), r"ranks has shape \(7,\); expected 1 dimensions, 8 rows"),
        (lambda a: a.update(ranks=a["ranks"][:, None]), r"ranks has shape \(8, 1\); expected 1 dimensions"),
        (lambda a: a.update(ranks=a["ranks"] * 0.5), "ranks has type float64"),
        (lambda a: a.update(draft_tokens=a["draft_tokens"][:, :2]), r"draft_tokens has shape \(8, 2\); expected that"),
        (lambda a: a.pop("exit_tokens"), "exit_tokens is missing, but there is exit_logprobs"),
        (put("exit_logprobs", (2, 1), np.nan), "exit_logprobs holds NaN or infinity"),
        (put("draft_logprobs", (2, 1), np.nan), "draft_logprobs holds NaN or infinity; expected finite log-probs"),
        (put("draft_logprobs", (2, 2), -np.inf), "draft_logprobs holds NaN or infinity"),
        (put("draft_logprobs", (2, 2), -1e-3), "draft_logprobs rises along a row; expected the best candidate first"),
        (put("ranks", 3, -1), "ranks holds -1; expected whole numbers from 0 to 2147483647"),
        (put("draft_logprobs", (2, 0), 1e30), "draft_logprobs holds 1e\\+30; expected log-probs, which are at most 0"),
        (put("prompt_tokens", 0, -7), "prompt_tokens holds -7; expected whole numbers from 0"),
        (put("draft_tokens", (1, 1), -1), "draft_tokens holds -1; expected whole numbers from 0"),
        (lambda a: a.update(extra=np.zeros(3)), "'extra' is an array that a trace does not have"),
        (
            lambda a: a.update(lengths=np.array([2**62, 2**62, 2**62, 2**62])[: len(a["lengths"])]),
            "lengths holds 4611686018427387904; expected no more tokens than fit into a trace",
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, change: Callable[[Arrays], object], message: str) -> None:
    path = rewritten(tmp_path, change)
    with pytest.raises(ValueError, match=f"^{path}: {message}") as caught:
        AcceptanceTrace.load(path)
    assert "\n" not in str(caught.value)


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    return buffer.getvalue()


def half_a_trace() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, about=np.array("{}"), ranks=np.arange(999))
    return buffer.getvalue()[:2000]


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04 and so on", npy(), half_a_trace()])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: not an acceptance trace"):
        AcceptanceTrace.load(path)


def test_absent_file_and_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.npz", tmp_path):
        with pytest.raises(ValueError, match=f"^{path}: cannot be read"):
            AcceptanceTrace.load(path)


def test_guesses_ahead_load_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)

    def with_ahead(one: TracedPrompt) -> TracedPrompt:
        shape = (len(one.target_tokens), 3, 2)
        logprobs = -np.sort(rng.gamma(1.0, 2.0, shape), axis=2).astype(np.float32)
        return replace(one, ahead=Guesses(rng.integers(0, 99, shape, dtype=np.int32), logprobs))

    saved = replace(TRACE, draft_kind=DraftKind.PARALLEL, prompts=tuple(map(with_ahead, TRACE.prompts)))
    saved.save(tmp_path / "trace.npz")
    loaded = AcceptanceTrace.load(tmp_path / "trace.npz")
    assert (loaded.draft_kind, loaded.num_ahead, TRACE.num_ahead) == (DraftKind.PARALLEL, 3, 0)
    for found, expected in zip(loaded.prompts, saved.prompts, strict=True):
        assert found.ahead is not None
        assert expected.ahead is not None
        assert all(np.array_equal(*both) for both in zip(found.ahead, expected.ahead, strict=True))
