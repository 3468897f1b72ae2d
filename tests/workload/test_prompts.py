from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swiftspec.artifacts.trace import Guesses
from swiftspec.artifacts.workload import PromptSource
from swiftspec.files.document import file_sha256
from swiftspec.workload import PromptLengths, lengths_in_prompts, lengths_in_trace, make_workload
from tests.cli import samples
from tests.workload.samples import written
from tests.workload.test_generate import FIXED, POISSON


def test_a_trace_has_lengths_of_prompts_and_outputs(tmp_path: Path) -> None:
    trace = samples.trace()
    trace.save(path := tmp_path / "trace.npz")
    found = lengths_in_trace(path)
    assert found.source == PromptSource(file="trace.npz", sha256=file_sha256(path))
    assert found.ids == tuple(prompt.prompt_id for prompt in trace.prompts)
    assert found.prompt_tokens == tuple(prompt.prompt_length for prompt in trace.prompts)
    assert found.output_tokens == tuple(len(prompt.target_tokens) for prompt in trace.prompts)


def test_traced_prompts_without_output_are_left_out(tmp_path: Path) -> None:
    trace = samples.trace()
    nothing = np.zeros(0, np.int32)
    ended = replace(
        trace.prompts[0],
        prompt_id="ended",
        target_tokens=nothing,
        ranks=nothing,
        guesses={
            who: Guesses(guesses.tokens[:0], guesses.logprobs[:0]) for who, guesses in trace.prompts[0].guesses.items()
        },
    )
    replace(trace, prompts=(ended, *trace.prompts)).save(tmp_path / "trace.npz")
    assert "ended" not in lengths_in_trace(tmp_path / "trace.npz").ids
    replace(trace, prompts=(ended,)).save(tmp_path / "trace.npz")
    with pytest.raises(ValueError, match=r"trace\.npz: no prompt has an output"):
        lengths_in_trace(tmp_path / "trace.npz")


def test_a_prompts_file_has_prompts_only(tmp_path: Path) -> None:
    path = written(tmp_path, "prompts.jsonl", '{"id": "x", "prompt": "one two"}\n{"id": "y", "prompt": "three"}\n')
    found = lengths_in_prompts(path, count_tokens=lambda text: len(text.split()))
    assert (found.ids, found.prompt_tokens, found.output_tokens) == (("x", "y"), (2, 1), None)
    with pytest.raises(ValueError, match=r"^output_tokens is missing; prompts\.jsonl has prompts only$"):
        make_workload(POISSON, num_requests=3, prompts=found)
    made = make_workload(POISSON, num_requests=30, prompts=found, output_tokens=FIXED)
    assert {(each.prompt_id, each.prompt_tokens) for each in made.requests} == {("x", 2), ("y", 1)}


@pytest.mark.parametrize("prompt_id", ["", "x" * 65])
def test_an_id_that_a_request_cannot_hold_is_named(prompt_id: str) -> None:
    source = PromptSource(file="p.jsonl", sha256="0")
    with pytest.raises(ValueError, match=r"^p\.jsonl: id is '.*; expected 1 to 64 characters$"):
        PromptLengths(source=source, ids=(prompt_id,), prompt_tokens=(1,))
