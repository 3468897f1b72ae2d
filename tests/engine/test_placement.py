import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftspec.documents import ModelRef
from swiftspec.engine.launcher import Engine
from swiftspec.engine.placement import check_groups, disaggregated, placed, usable_device
from swiftspec.engine.protocol import Setup
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role

REFERENCE = ModelRef(model="nowhere", dtype="float32")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0", "", "cuda:-1"])
def test_an_unknown_device_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{name}'; expected cpu, cuda or cuda:N"):
        usable_device(name)


@without_gpu
def test_an_engine_on_a_gpu_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="device is 'cuda', but torch finds 0 GPUs here"):
        Engine(
            target=REFERENCE,
            draft=None,
            groups={Role.TARGET: (0,)},
            layout=Layout.TARGET_ONLY,
            max_context=8,
            device="cuda",
        )


@pytest.mark.usefixtures("four_gpus")
def test_gpus_are_counted_from_zero() -> None:
    assert usable_device("cuda") == torch.device("cuda", 0)
    assert usable_device("cuda:3") == torch.device("cuda", 3)
    with pytest.raises(ValueError, match="device is 'cuda:4', but torch finds 4 GPUs here"):
        usable_device("cuda:4")


@pytest.mark.usefixtures("four_gpus")
def test_a_process_gets_one_gpu_and_every_core() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    assert placed((2,), "cuda") == {"cores": cores, "device": "cuda:2"}
    assert placed((0,), "cpu") == {"cores": cores[:1], "device": "cpu"}


@pytest.mark.usefixtures("four_gpus")
def test_roles_may_share_a_gpu() -> None:
    check_groups({Role.TARGET: (1,), Role.DRAFT: (1,)}, target_groups=1, device="cuda")
    check_groups({Role.TARGET: (0, 2), Role.DRAFT: (1,)}, target_groups=2, device="cuda")


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({Role.TARGET: (0, 1)}, "target is placed on 2 GPUs; expected 1, one for each process"),
        ({Role.TARGET: (0,), Role.DRAFT: (1, 2)}, "draft is placed on 2 GPUs; expected 1"),
        ({Role.TARGET: (4,)}, r"target is placed on devices \[4\]; this machine offers 4"),
        ({Role.TARGET: ()}, r"target is placed on devices \[\]"),
    ],
    ids=["target", "draft", "absent", "none"],
)
def test_a_group_that_cannot_be_used_is_named(groups: dict[Role, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_groups(groups, target_groups=1, device="cuda")


def test_what_launches_kernels_is_one_thread() -> None:
    setup = Setup(
        role=Role.TARGET, rank=0, models={}, cores=(0, 1, 2), channels=(), max_context=8, tree_slots=8, device="cuda:1"
    )
    assert setup.num_threads == 1
    assert replace(setup, device="cpu").num_threads == 3


def test_target_groups_are_equal_slices_with_a_channel_each(tmp_path: Path) -> None:
    first, second, draft = disaggregated({Role.TARGET: (0, 1, 2, 3), Role.DRAFT: (4,)}, 2, tmp_path)
    assert [(process.role, process.rank) for process in (first, second)] == [(Role.TARGET, 0), (Role.TARGET, 1)]
    assert (first.devices, second.devices, draft.devices) == ((0, 1), (2, 3), (4,))
    assert first.channels + second.channels == draft.channels
    assert len(set(draft.channels)) == 2
