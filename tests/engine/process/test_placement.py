import os

import pytest
import torch

from swiftspec.devices.local import Device, usable_device
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.models import on_devices
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.process.protocol import WorkerSpec, cores_of
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from tests.engine.setups import setup

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
        Launcher(
            {Role.TARGET: REFERENCE},
            Placement(groups={Role.TARGET: (0,)}, device="cuda"),
            layout=Layout.TARGET_ONLY,
            max_context=8,
        )


@pytest.mark.usefixtures("four_gpus")
def test_gpus_are_counted_from_zero() -> None:
    assert usable_device("cuda") == torch.device("cuda", 0)
    assert usable_device("cuda:3") == torch.device("cuda", 3)
    with pytest.raises(ValueError, match="device is 'cuda:4', but torch finds 4 GPUs here"):
        usable_device("cuda:4")


def test_a_process_on_a_gpu_may_use_every_core() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    assert cores_of(setup(device="cuda", devices=(2,))) == cores
    assert cores_of(setup()) == cores[:1]


def test_what_launches_kernels_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    assert on_devices("cpu", (0, 1, 2)) == "cpu"
    assert on_devices("cuda", (4,)) == "cuda:4"
    assert told == [3, 1, 4]


def check_gpus(groups: dict[Role, tuple[int, ...]], *, target_groups: int = 1) -> None:
    Placement(groups=groups, target_groups=target_groups, device="cuda").check(4)


def test_roles_may_share_a_gpu() -> None:
    check_gpus({Role.TARGET: (1,), Role.DRAFT: (1,)})
    check_gpus({Role.TARGET: (0, 2), Role.DRAFT: (1,)}, target_groups=2)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({Role.TARGET: (4,)}, r"target is placed on devices \[4\]; this machine offers 4"),
        ({Role.TARGET: ()}, r"target is placed on devices \[\]"),
    ],
    ids=["absent", "none"],
)
def test_a_group_that_cannot_be_used_is_named(groups: dict[Role, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_gpus(groups)


@pytest.mark.parametrize(
    ("num_ranks", "device", "message"),
    [
        (2, "cpu", "target has 2 ranks on 3 devices of a group; expected as many for each"),
        (0, "cpu", "target has 0 ranks on 3 devices"),
        (1, "cuda", "target has 1 ranks on 3 GPUs of a group; expected one for each"),
    ],
)
def test_ranks_that_cannot_share_their_devices_are_named(num_ranks: int, device: Device, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Placement(groups={Role.TARGET: (0, 1, 2)}, ranks={Role.TARGET: num_ranks}, device=device).check(4)


def test_target_groups_are_equal_slices() -> None:
    groups = {Role.DRAFT: (4,), Role.TARGET: (0, 1, 2, 3)}
    first, second, draft = Placement(groups=groups, target_groups=2).worker_specs()
    assert first == [WorkerSpec(Role.TARGET, 0, 0, 1, (0, 1))]
    assert second == [WorkerSpec(Role.TARGET, 1, 0, 1, (2, 3))]
    assert draft == [WorkerSpec(Role.DRAFT, 0, 0, 1, (4,))]


def test_ranks_are_equal_slices_of_their_group() -> None:
    groups = {Role.TARGET: (0, 1, 2, 3), Role.DRAFT: (4, 5)}
    target, draft = Placement(groups=groups, ranks={Role.TARGET: 2}).worker_specs()
    assert target == [WorkerSpec(Role.TARGET, 0, 0, 2, (0, 1)), WorkerSpec(Role.TARGET, 0, 1, 2, (2, 3))]
    assert draft == [WorkerSpec(Role.DRAFT, 0, 0, 1, (4, 5))]
    assert [len(tp_group) for tp_group in Placement(groups=groups, device="cuda").worker_specs()] == [4, 2]
