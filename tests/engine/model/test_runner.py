from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftspec.artifacts.document import ModelRef
from swiftspec.engine.model.gpu_model import GpuDecoder
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.policies.effects import Row
from tests.engine.checkpoints import write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = (Row(1, 3, 0), Row(2, 4, 1), Row(3, 4, 1))


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
    logits = []
    for device in ("cpu", "cuda:1"):
        model = ModelRunner.load(reference, max_context=40, tree_slots=33, device=device)
        model.warm_up(4)
        model.prefill((4, 5, 6))
        model.forward(ROWS)
        model.keep((0, 2), 1)
        assert model.exit((Row(7, 5, 1),)).shape == (1, 83)
        logits.append(model.finish())
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
