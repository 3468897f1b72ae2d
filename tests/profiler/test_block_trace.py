"""Guesses of a block drafter in a trace: those of a whole block, however far ahead they are asked for."""

from pathlib import Path

import numpy as np

from swiftspec.artifacts.trace import Guesser
from swiftspec.policies import DraftKind
from tests.engine.blocks import NUM_MASKS, Reference, write_block_drafter
from tests.engine.checkpoints import write_checkpoint
from tests.profiler.recorded import record_small


def test_guesses_are_those_of_the_definition(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path / "target", "llama")
    drafter = write_block_drafter(tmp_path / "block", target)
    trace = record_small(target, drafter, tmp_path)
    assert (trace.draft_kind, trace.num_ahead) == (DraftKind.BLOCK, 8)
    assert trace.guessers == {Guesser.DRAFT, Guesser.EXIT}
    reference, prompt = Reference(drafter, target), trace.prompts[0]
    text = [*prompt.prompt_tokens.tolist(), *prompt.target_tokens.tolist()]
    assert prompt.ahead is not None
    # The output position, and the masks before it; beyond a block, its last answer stands.
    for place, distance in ((0, 0), (7, 0), (19, 0), (1, 1), (9, 2), (13, NUM_MASKS - 1), (19, NUM_MASKS), (12, 8)):
        answers = reference.logits(text[: prompt.prompt_length + place - distance])
        logprobs = answers[min(distance, NUM_MASKS - 1)].log_softmax(-1).topk(3)
        tokens, recorded = (
            (column[place] for column in prompt.draft)
            if distance == 0
            else (column[place, distance - 1] for column in prompt.ahead)
        )
        assert tokens.tolist() == logprobs.indices.tolist(), (place, distance)
        np.testing.assert_allclose(recorded, logprobs.values, atol=1e-3)
