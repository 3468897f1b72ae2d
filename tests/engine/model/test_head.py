"""Heads on the target's features: logits of every layout against their definition, and checkpoints that do not fit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.models import Models, load_models
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import ForwardKind, Role, Row
from tests.engine.checkpoints import VOCAB_SIZE, write_checkpoint
from tests.engine.heads import LAYOUTS, Reference, write_head

TEXT = (5, 17, 40, 8, 61, 33, 2, 70, 19, 54, 11, 28)
EXACT = ForwardKind.EXACT


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"), "llama")


def load(target: Path, head: Path, *, inflate: str | None = None, dtype: str = "float32") -> Models:
    references = {
        Role.TARGET: ModelRef(model=str(target), inflate=inflate, dtype=dtype),
        Role.DRAFT: ModelRef(model=str(head), dtype=dtype),
    }
    return load_models(references, max_context=64, tree_slots=32, num_sequences=2)


def ask(models: Models, role: Role, rows: list[Row], *, sequence: int = 0) -> Tensor:
    return models[role].forward(ForwardBatch(EXACT, (Rows(sequence, tuple(rows)),))).logits[0].clone()


def read(models: Models, tokens: tuple[int, ...], *, sequence: int = 0) -> None:
    for role in (Role.TARGET, Role.DRAFT):
        models[role].forward(ForwardBatch(EXACT, (Chunk(sequence, tokens),)))


CASES: list[tuple[str, str | None, bool]] = [(layout, None, True) for layout in LAYOUTS]
CASES += [("eagle3", "layers=7,hidden=64", True), ("mtp", "layers=5", True)]
CASES += [("eagle3", None, False), ("speculators", None, False)]


@pytest.mark.parametrize(("layout", "inflate", "has_kernels"), CASES)
def test_logits_are_those_of_the_definition(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, inflate: str | None, has_kernels: bool
) -> None:
    if not has_kernels:
        for module in ("cpu.model", "models"):
            monkeypatch.setattr(f"swiftspec.engine.model.{module}.load_library", lambda: None)
    head = write_head(tmp_path / "head", target, layout)
    reference = Reference(head, target, layout)
    models = load(target, head, inflate=inflate)

    def check(logits: Tensor, *path: int, num_verified: int) -> None:
        expected = reference.logits(path, num_verified=num_verified)
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)

    read(models, TEXT[:5])
    # A root, and below it a tree on the head's own hidden states: a chain of two, and a brother of the first.
    root = ask(models, Role.DRAFT, [Row(TEXT[5], 5, 0)])[0]
    check(root, *TEXT[:6], num_verified=5)
    drafted = ask(models, Role.DRAFT, [Row(7, 6, 0b1), Row(9, 6, 0b1)])
    check(drafted[0], *TEXT[:6], 7, num_verified=5)
    check(drafted[1], *TEXT[:6], 9, num_verified=5)
    (deeper,) = ask(models, Role.DRAFT, [Row(3, 7, 0b101)])
    check(deeper, *TEXT[:6], 9, 3, num_verified=5)
    # The target verifies a tree, of which rows that are not neighbours stay; the head reads them afresh.
    ask(models, Role.TARGET, [Row(TEXT[5], 5, 0), Row(7, 6, 0b1), Row(9, 6, 0b1), Row(3, 7, 0b101)])
    models[Role.TARGET].keep(0, (0, 2, 3), 3)
    models[Role.DRAFT].keep(0, (0,), 1)
    fresh = [Row(9, 6, 0), Row(3, 7, 0b1), Row(50, 8, 0b11)]
    verified = (*TEXT[:6], 9, 3, 50)
    for row, logits in enumerate(ask(models, Role.DRAFT, fresh)):
        check(logits, *verified[: 7 + row], num_verified=8)
    (next_one,) = ask(models, Role.DRAFT, [Row(12, 9, 0b111)])
    check(next_one, *verified, 12, num_verified=8)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_a_prompt_in_pieces_and_the_first_token(target: Path, tmp_path: Path, length: int) -> None:
    head = write_head(tmp_path / "head", target, "eagle3")
    models, reference = load(target, head), Reference(head, target, "eagle3")
    text = tuple(7 * index % VOCAB_SIZE for index in range(length + 1))
    models[Role.TARGET].forward(ForwardBatch(EXACT, (Chunk(0, text[:length]),)))
    for start in range(0, length, 16):
        models[Role.DRAFT].forward(ForwardBatch(EXACT, (Chunk(0, text[start : min(start + 16, length)]),)))
    (logits,) = ask(models, Role.DRAFT, [Row(text[-1], length, 0)])
    torch.testing.assert_close(logits, reference.logits(text, num_verified=length), atol=2e-4, rtol=1e-4)


def test_sequences_of_a_batch_do_not_touch(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target, "speculators")
    models, reference = load(target, head), Reference(head, target, "speculators")
    texts = (TEXT[:4], TEXT[3:9])
    for sequence, text in enumerate(texts):
        read(models, text[:-1], sequence=sequence)
    entries = tuple(Rows(number, (Row(text[-1], len(text) - 1, 0),)) for number, text in enumerate(texts))
    result = models[Role.DRAFT].forward(ForwardBatch(EXACT, entries, top_k=4))
    for text, logits, (candidates,) in zip(texts, result.logits, result.candidates, strict=True):
        expected = reference.logits(text, num_verified=len(text) - 1)
        torch.testing.assert_close(logits[0], expected, atol=2e-4, rtol=1e-4)
        assert candidates.tokens == tuple(expected.topk(4).indices.tolist())
        best = expected.log_softmax(-1).topk(4).values
        torch.testing.assert_close(torch.tensor(candidates.logprobs), best, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"target_hidden_size": 64}, "target_hidden_size is 64; expected 48, the target's hidden size"),
        ({"vocab_size": 90}, "vocab_size is 90; expected 83, the target's vocabulary size"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "layer_ids has 9; the target has 3 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"layer_ids is \[1, 2\]; expected three layers"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; expected 1"),
        ({"norm_before_fc": True}, "norm_before_fc is True; expected false"),
        ({"draft_vocab_size": 30}, "tensor d2t has shape"),
    ],
)
def test_a_head_of_another_target_is_refused(
    target: Path, tmp_path: Path, changed: dict[str, object], sentence: str
) -> None:
    head = write_head(tmp_path / "head", target, "eagle3", **changed)
    with pytest.raises(ValueError, match=sentence):
        load(target, head)


def test_an_mtp_layer_of_experts_is_refused(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target, "mtp")
    weights = load_file(head / "model.safetensors")
    weights["model.layers.3.mlp.experts.0.up_proj.weight"] = weights.pop("model.layers.3.mlp.up_proj.weight")
    save_file(weights, head / "model.safetensors")
    with pytest.raises(ValueError, match=r"unexpected tensor model\.layers\.3\.mlp\.experts\.0\.up_proj\.weight"):
        load(target, head)


def test_a_head_without_a_target_is_refused(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target, "eagle3")
    assert json.loads((head / "config.json").read_text())["architectures"] == ["LlamaForCausalLMEagle3"]
    with pytest.raises(ValueError, match="reads the target's hidden states; expected a co-located policy"):
        load_models({Role.DRAFT: ModelRef(model=str(head), dtype="float32")}, max_context=64, tree_slots=8)
