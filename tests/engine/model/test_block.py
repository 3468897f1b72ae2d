"""Block drafters on the target's features: logits against their definition, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.models import Models, load_models
from swiftspec.files.document import ModelRef
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import ForwardKind, Role, Row
from tests.engine.blocks import MASK, NUM_MASKS, Reference, write_block_drafter
from tests.engine.checkpoints import write_checkpoint

TEXT = (5, 17, 40, 8, 61, 33, 2, 70, 19, 54, 11, 28)
EXACT = ForwardKind.EXACT


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"), "llama")


def load(target: Path, drafter: Path, *, inflate: str | None = None) -> Models:
    references = {
        Role.TARGET: ModelRef(model=str(target), inflate=inflate, dtype="float32"),
        Role.DRAFT: ModelRef(model=str(drafter), dtype="float32"),
    }
    return load_models(references, max_context=64, tree_slots=32, num_sequences=2)


def block(models: Models, tokens: tuple[int, ...], num_masks: int, *, first: int, sequence: int = 0) -> Tensor:
    """Logits after verified tokens from position `first` on, and after masks below them; none of them is kept."""
    rows = tuple(Row(token, first + i, (1 << i) - 1) for i, token in enumerate((*tokens, *[MASK] * num_masks)))
    logits = models[Role.DRAFT].forward(ForwardBatch(EXACT, (Rows(sequence, rows),))).logits[0]
    return logits[len(tokens) - 1 :].clone()


def read(models: Models, tokens: tuple[int, ...], *, sequence: int = 0) -> None:
    for role in (Role.TARGET, Role.DRAFT):
        models[role].forward(ForwardBatch(EXACT, (Chunk(sequence, tokens),)))


@pytest.mark.parametrize(("inflate", "has_kernels"), [(None, True), (None, False), ("layers=7,hidden=64", True)])
def test_logits_are_those_of_the_definition(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inflate: str | None, has_kernels: bool
) -> None:
    if not has_kernels:
        monkeypatch.setattr("swiftspec.engine.model.cpu.model.load_library", lambda: None)
    drafter = write_block_drafter(tmp_path / "block", target)
    models, reference = load(target, drafter, inflate=inflate), Reference(drafter, target)
    read(models, TEXT[:5])
    found = block(models, TEXT[5:6], 3, first=5)
    # A mask answers for its own place: one more is computed than there are rows.
    torch.testing.assert_close(found, reference.logits(TEXT[:6]), atol=2e-4, rtol=1e-4)
    models[Role.DRAFT].keep(0, (0,), 1)
    # The target verifies a tree, of which rows that are not neighbours stay; the drafter reads their features.
    tree = (Row(TEXT[5], 5, 0), Row(7, 6, 0b1), Row(9, 6, 0b1), Row(3, 7, 0b101))
    models[Role.TARGET].forward(ForwardBatch(EXACT, (Rows(0, tree),)))
    models[Role.TARGET].keep(0, (0, 2, 3), 3)
    found = block(models, (9, 3, 50), 2, first=6)
    torch.testing.assert_close(found, reference.logits((*TEXT[:6], 9, 3, 50))[:3], atol=2e-4, rtol=1e-4)


def test_sequences_of_a_batch_do_not_touch(target: Path, tmp_path: Path) -> None:
    drafter = write_block_drafter(tmp_path / "block", target)
    models, reference = load(target, drafter), Reference(drafter, target)
    texts = (TEXT[:4], TEXT[3:9])
    for sequence, text in enumerate(texts):
        read(models, text[:-1], sequence=sequence)
    entries = tuple(
        Rows(number, (Row(text[-1], len(text) - 1, 0), Row(MASK, len(text), 0b1))) for number, text in enumerate(texts)
    )
    result = models[Role.DRAFT].forward(ForwardBatch(EXACT, entries, top_k=3))
    for text, logits, candidates in zip(texts, result.logits, result.candidates, strict=True):
        expected = reference.logits(text)[:2]
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
        assert [each.tokens for each in candidates] == [tuple(row.topk(3).indices.tolist()) for row in expected]


def test_a_block_is_of_one_size(target: Path, tmp_path: Path) -> None:
    models = load(target, write_block_drafter(tmp_path / "block", target))
    read(models, TEXT[:5])
    answers = []
    for num_masks in (0, 2, NUM_MASKS + 1):
        answers.append(block(models, TEXT[5:6], num_masks, first=5))
        models[Role.DRAFT].keep(0, (), 0)
    few, some, many = answers
    assert torch.equal(few, some[:1])
    assert torch.equal(some, many[:3])
    assert torch.equal(many[NUM_MASKS - 1 :], many[NUM_MASKS - 1 :][:1].expand(3, -1))


def test_a_text_may_have_the_mask_in_it(target: Path, tmp_path: Path) -> None:
    drafter = write_block_drafter(tmp_path / "block", target)
    models, reference = load(target, drafter), Reference(drafter, target)
    read(models, TEXT[:3])
    models[Role.TARGET].forward(ForwardBatch(EXACT, (Chunk(0, (4, MASK)),)))
    found = block(models, (4, MASK, 6), 1, first=3)
    torch.testing.assert_close(found, reference.logits((*TEXT[:3], 4, MASK, 6))[:2], atol=2e-4, rtol=1e-4)
    models[Role.DRAFT].keep(0, (), 0)
    assert len(block(models, (MASK,), 2, first=3)) == 3  # guesses, after a text that ends with it


def test_rows_that_are_no_chain_of_tokens_and_masks_are_refused(target: Path, tmp_path: Path) -> None:
    models = load(target, write_block_drafter(tmp_path / "block", target))
    read(models, TEXT[:3])
    for rows in ((Row(4, 4, 0),), (Row(4, 3, 0), Row(5, 4, 0)), (Row(4, 3, 0), Row(MASK, 4, 0))):
        with pytest.raises(ValueError, match="sequence 0: rows are no chain of tokens and then masks"):
            models[Role.DRAFT].forward(ForwardBatch(EXACT, (Rows(0, rows),)))


def test_tokens_that_the_target_has_not_verified_are_refused(target: Path, tmp_path: Path) -> None:
    models = load(target, write_block_drafter(tmp_path / "block", target))
    models[Role.DRAFT].forward(ForwardBatch(EXACT, (Chunk(0, TEXT[:4]),)))
    with pytest.raises(ValueError, match="at position 4, but the target has verified only 0 tokens"):
        block(models, TEXT[4:5], 1, first=4)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"hidden_size": 64}, "hidden_size is 64; expected 48, the target's hidden size"),
        ({"vocab_size": 90}, "vocab_size is 90; expected 83, the target's vocabulary size"),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 3]}}, "has 3; the target has 3 layers"),
        ({"dflash_config": {"mask_token_id": 83, "target_layer_ids": [1]}}, "mask_token_id is 83; expected a token id"),
        ({"dflash_config": {"mask_token_id": 3}}, "target_layer_ids is None; expected layers' numbers"),
        ({"block_size": 1}, "block_size is 1; expected 2 to 256 tokens"),
        ({"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight of the drafter is missing"),
        ({"num_hidden_layers": 1}, "unexpected tensor layers.1.input_layernorm.weight"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    target: Path, tmp_path: Path, changed: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(target, write_block_drafter(tmp_path / "block", target, **changed))


def test_facts_of_a_block_drafter(target: Path, tmp_path: Path) -> None:
    facts = draft_facts(write_block_drafter(tmp_path / "block", target))
    assert (facts.kind, facts.mask_token) == (DraftKind.BLOCK, MASK)
