"""Masks of the parallel draft's training: what each row sees, and that the mask is no token of a text."""

import torch
from tokenizers import Tokenizer

from swiftspec.models.spec import model_directory
from tools.demo_training.train_parallel import mask_token, masked_layout


def test_a_mask_sees_the_text_up_to_its_anchor_and_the_masks_between() -> None:
    context, num_masks = 12, 3
    generator = torch.Generator().manual_seed(1)
    layout = masked_layout(context, num_masks=num_masks, retention=0.7, generator=generator)
    positions, sees = layout.positions.tolist(), layout.sees
    assert positions[:context] == list(range(context))
    assert torch.equal(sees[:context, :context], torch.ones(context, context).tril().bool())
    assert not sees[:context, context:].any()
    depths = []
    for row in range(context, len(positions)):
        seen = sees[row].nonzero().flatten().tolist()
        # One row of every position up to its own: text first, then masks, itself the last.
        assert sorted(positions[other] for other in seen) == list(range(positions[row] + 1))
        assert row in seen
        depths.append(sum(other >= context for other in seen))
    first, second, third = (depths.count(depth) for depth in (1, 2, 3))
    assert first == 8  # 0.7 of the 11 that have a token after the mask's position
    assert 1 <= third < second <= 6


def test_no_text_holds_the_mask() -> None:
    tokenizer = Tokenizer.from_file(str(model_directory("demo/parallel_draft") / "tokenizer.json"))
    mask = mask_token(tokenizer)
    assert mask not in tokenizer.encode("\u00ff\u00f0 caf\u00e9 \U0001f600").ids
    assert tokenizer.decode([mask]) == "\ufffd"
