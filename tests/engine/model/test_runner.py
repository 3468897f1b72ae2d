from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import ForwardKind, Row
from tests.engine.checkpoints import write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = Chunk(0, (4, 5, 6))
TREE = Rows(0, (Row(1, 3, 0), Row(2, 4, 1), Row(3, 4, 1)))
BRANCH = Rows(0, (Row(7, 5, 1),))


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Any device is there; on a GPU, `load` stands in for `GpuDecoder.load`."""

    def pretend(load: Callable[..., Any]) -> None:
        monkeypatch.setattr("swiftspec.engine.model.runner.usable_device", torch.device)
        monkeypatch.setattr(GpuDecoder, "load", load)

    return pretend


@pytest.mark.parametrize("inflate", [None, "layers=5"])
def test_a_gpu_gets_static_buffers_and_the_same_answers(
    tmp_path: Path, inflate: str | None, pretended_gpu: Callable[[Callable[..., Any]], None]
) -> None:
    asked: list[dict[str, Any]] = []
    real = GpuDecoder.load

    def load(directory: Path, *, device: torch.device, **settings: Any) -> GpuDecoder:
        asked.append({"device": device, **settings})
        return real(directory, **settings)

    pretended_gpu(load)
    reference = ModelRef(model=str(write_checkpoint(tmp_path, "llama")), dtype="float32", inflate=inflate)
    logits: list[torch.Tensor] = []
    for device in ("cpu", "cuda:1"):
        model = ModelRunner.load(reference, max_context=40, tree_slots=33, device=device)
        model.warm_up(4)
        model.forward(ForwardBatch(ForwardKind.EXACT, (PROMPT,)))
        model.forward(ForwardBatch(ForwardKind.EXACT, (TREE,)))
        model.keep(0, (0, 2), 1)
        (half,) = model.forward(ForwardBatch(ForwardKind.FIRST_HALF, (BRANCH,))).logits
        assert half.shape == (1, 83)
        logits += model.forward(ForwardBatch(ForwardKind.SECOND_HALF, (BRANCH,))).logits
    assert [call["device"] for call in asked] == [torch.device("cuda:1")]
    assert asked[0]["weight_format"].dtype == torch.float32
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-4)


def test_too_little_memory_is_one_sentence(tmp_path: Path, pretended_gpu: Callable[[Callable[..., Any]], None]) -> None:
    def load(*_: Any, **__: Any) -> GpuDecoder:
        raise torch.OutOfMemoryError

    pretended_gpu(load)
    reference = ModelRef(model=str(tmp_path), dtype="bfloat16")
    with pytest.raises(ValueError, match=r"in bfloat16 with 104 slots does not fit into the memory of cuda:0"):
        ModelRunner.load(reference, max_context=40, tree_slots=64, device="cuda:0")


@pytest.mark.parametrize(("device", "expected"), [("cpu", "bfloat16, int8 on cpu"), ("cuda", "fp8, int4 on cuda")])
def test_a_dtype_that_a_device_does_not_have_is_named(
    device: str, expected: str, pretended_gpu: Callable[[Callable[..., Any]], None]
) -> None:
    pretended_gpu(GpuDecoder.load)
    with pytest.raises(ValueError, match=rf"dtype is 'int3'; expected one of .*{expected}"):
        ModelRunner.load(ModelRef(model="nowhere", dtype="int3"), max_context=8, tree_slots=8, device=device)


def test_sequences_have_caches_of_their_own(tmp_path: Path) -> None:
    reference = ModelRef(model=str(write_checkpoint(tmp_path, "llama")), dtype="float32")
    model = ModelRunner.load(reference, max_context=40, tree_slots=8, num_sequences=3)
    alone = ModelRunner.load(reference, max_context=40, tree_slots=8)
    prompts = tuple(Chunk(sequence, (4 + sequence, 5, 6)) for sequence in range(3))
    model.forward(ForwardBatch(ForwardKind.EXACT, prompts))
    model.forward(ForwardBatch(ForwardKind.EXACT, tuple(Rows(sequence, TREE.rows) for sequence in range(3))))
    model.keep(0, (0, 2), 1)
    model.reset(1)
    for batch in (prompts[:1], (TREE,)):
        alone.forward(ForwardBatch(ForwardKind.EXACT, batch))
    alone.keep(0, (0, 2), 1)
    expected = alone.forward(ForwardBatch(ForwardKind.EXACT, (BRANCH,))).logits[0]
    entries = (BRANCH, Chunk(1, (9, 8)), Rows(2, (Row(3, 5, 0b11),)))
    answers = model.forward(ForwardBatch(ForwardKind.EXACT, entries)).logits
    assert [answer.shape for answer in answers] == [(1, 83)] * 3
    torch.testing.assert_close(answers[0], expected, rtol=0, atol=1e-4)
    assert not torch.allclose(answers[1], expected, atol=1e-2)
    assert not torch.allclose(answers[2], expected, atol=1e-2)


@pytest.mark.parametrize("sequence", [-1, 2])
def test_a_sequence_that_there_is_not_is_named(tmp_path: Path, sequence: int) -> None:
    reference = ModelRef(model=str(write_checkpoint(tmp_path, "llama")), dtype="float32")
    model = ModelRunner.load(reference, max_context=40, tree_slots=8, num_sequences=2)
    batch = ForwardBatch(ForwardKind.EXACT, (Chunk(0, (1,)), Chunk(sequence, (1,))))
    for call in (lambda: model.forward(batch), lambda: model.keep(sequence, (), 0), lambda: model.reset(sequence)):
        with pytest.raises(ValueError, match=rf"sequence is {sequence}; expected 0 to 1"):
            call()


def test_no_sequences_are_refused(tmp_path: Path) -> None:
    reference = ModelRef(model=str(write_checkpoint(tmp_path, "llama")), dtype="float32")
    with pytest.raises(ValueError, match="num_sequences is 0; expected at least one"):
        ModelRunner.load(reference, max_context=40, tree_slots=8, num_sequences=0)
