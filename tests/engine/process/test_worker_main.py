import pytest
import torch

from swiftspec.engine.process.worker_main import _failure
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import Role
from tests.engine.setups import setup

SETUP = setup(models={Role.TARGET: ModelRef(model="demo/target", dtype="bfloat16")}, device="cuda")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total capacity of .."),
        MemoryError("Unable to allocate 3 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried .."),
    ],
    ids=["gpu", "python", "libc"],
)
def test_a_device_that_is_full_is_the_users_to_know_in_one_sentence(error: Exception) -> None:
    failed = _failure(error, SETUP)
    assert failed.is_user_error
    assert failed.sentence.startswith("demo/target in bfloat16: out of memory in the target process, ")
    assert "\n" not in failed.sentence


def test_any_other_error_is_ours() -> None:
    assert not _failure(RuntimeError("CUDA error: an illegal memory access was encountered"), SETUP).is_user_error
