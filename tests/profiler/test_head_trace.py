"""Guesses of a head in a trace: after verified tokens, and ahead of them on its own hidden states."""

from pathlib import Path

import numpy as np
import pytest

from swiftspec.artifacts.trace import Guesser
from swiftspec.policies import DraftKind
from tests.engine.checkpoints import write_checkpoint
from tests.engine.heads import Reference, write_head
from tests.profiler.recorded import record_small


@pytest.mark.parametrize("layout", ["speculators", "mtp"])
def test_guesses_are_those_of_the_definition(tmp_path: Path, layout: str) -> None:
    target = write_checkpoint(tmp_path / "target", "llama")
    head = write_head(tmp_path / "head", target, layout)
    trace = record_small(target, head, tmp_path)
    assert (trace.draft_kind, trace.num_ahead) == (DraftKind.HEAD, 8)
    assert trace.guessers == {Guesser.DRAFT, Guesser.EXIT}
    reference = Reference(head, target, layout)
    prompt = trace.prompts[0]
    text = [*prompt.prompt_tokens.tolist(), *prompt.target_tokens.tolist()]
    assert prompt.ahead is not None
    for place, distance in ((0, 0), (7, 0), (19, 0), (1, 1), (9, 1), (13, 4), (8, 8), (19, 8)):
        known = text[: prompt.prompt_length + place]
        logprobs = reference.logits(known, num_verified=len(known) - 1 - distance).log_softmax(-1).topk(3)
        tokens, recorded = (
            (column[place] for column in prompt.draft)
            if distance == 0
            else (column[place, distance - 1] for column in prompt.ahead)
        )
        assert tokens.tolist() == logprobs.indices.tolist(), (place, distance)
        np.testing.assert_allclose(recorded, logprobs.values, atol=1e-3)
