"""Every field of a process that node 0 asks for, as a hostile node 0 would fill it in."""

import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.document import ModelRef
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.admission import Admission
from swiftspec.engine.process.protocol import Setup
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies.effects import Role
from swiftspec.scheduler.batching import BatchLimits
from tests.engine.setups import node_facts, setup

TARGET = ModelRef(model="demo/target", dtype="float32")
DRAFT = ModelRef(model="demo/draft", dtype="float32")
MOST_CONTEXT = ModelSpec.from_directory(model_directory("demo/target")).max_position


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node's own folder, next to others."""
    for name in ("swiftspec-run-own", "swiftspec-run-other", "swiftspec-run-open", "other"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "swiftspec-run-open").chmod(0o755)
    (tmp_path / "swiftspec-run-link").symlink_to(tmp_path / "swiftspec-run-other")
    return tmp_path / "swiftspec-run-own"


@pytest.fixture
def admission(folder: Path) -> Admission:
    return Admission(own=node_facts(1, folder=str(folder)), first=node_facts(0), models=(TARGET, DRAFT), device="cpu")


def honest(**changes: Any) -> Setup:
    """A valid request of node 0 to this node, with some changes."""
    asked: dict[str, Any] = {
        "models": {Role.TARGET: TARGET},
        "devices": (0, 1),
        "channels": ("tcp://192.0.2.1:5001",),
        "max_context": MOST_CONTEXT,
        "tree_slots": 512,
    }
    return setup(**(asked | changes))


def tp_group(place: str) -> dict[str, Any]:
    return {"size": 2, "rank": 1, "tp_group": place}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"channels": ("ipc://OWN/channel-0", "ipc://OWN/channel-12")},
        {"channels": (), "models": {Role.TARGET: TARGET, Role.DRAFT: DRAFT}},
        {"role": Role.DRAFT, "models": {Role.DRAFT: DRAFT}, "channels": ("tcp://198.51.100.7:4000",)},
        tp_group("file://OWN/tp-group-target-0-1"),
        tp_group("tcp://192.0.2.0:4000/tp-group-draft-0-12"),
    ],
)
def test_what_a_plan_needs_is_done(changes: dict[str, Any], admission: Admission, folder: Path) -> None:
    admission.check(honest(**placed(changes, folder)))


def placed(changes: dict[str, Any], folder: Path) -> dict[str, Any]:
    """With this node's folder for OWN, and that above it for TMP."""

    def put(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(put, value))
        return value.replace("OWN", str(folder)).replace("TMP", str(folder.parent)) if isinstance(value, str) else value

    return {name: put(value) for name, value in changes.items()}


PLACES = [
    "ipc:///home/user/thesis.txt",
    "ipc://OWN/../thesis.txt",
    "ipc://OWN/channel-0/../../thesis.txt",
    "ipc://OWN/thesis.txt",
    "ipc://OWN/channel-0\0",
    "ipc://OWN/channel-0\n",
    "ipc://channel-0",
    "ipc://@channel-0",
    "ipc://TMP/other/channel-0",
    "ipc://TMP/swiftspec-run-other/channel-0",
    "inproc://zeromq.zap.01",
    "pgm://192.0.2.1:5000",
    "",
]
TEAMS = [
    "file:///home/user/thesis.txt",
    "file://OWN/../tp-group-target-0-1",
    "file://OWN/thesis.txt",
    "file://OWN/tp-group-../../x-1",
    "file://TMP/swiftspec-run-other/tp-group-target-0-1",
    "tcp://198.51.100.7:4000/tp-group-target-0-1",
    "tcp://192.0.2.0:0/tp-group-target-0-1",
    "tcp://192.0.2.0:99999/tp-group-target-0-1",
    "tcp://192.0.2.0:4000/",
    "tcp://user@192.0.2.0:4000/tp-group-target-0-1",
    "tcp://192.0.2.0:4000/tp-group-target-0-1?x",
    "",
]
HOSTILE: list[tuple[str, dict[str, Any]]] = [
    *(("channels", {"channels": (place,)}) for place in PLACES),
    *(("channels", {"role": Role.DRAFT, "models": {Role.DRAFT: DRAFT}, "channels": (place,)}) for place in PLACES),
    ("channels", {"channels": ("tcp://0.0.0.0:5000",)}),
    ("channels", {"channels": ("tcp://*:5000",)}),
    ("channels", {"channels": ("tcp://192.0.2.1:22",)}),
    ("channels", {"channels": ("tcp://192.0.2.1:5000/x",)}),
    ("channels", {"channels": ("tcp://192.0.2.1:5000;198.51.100.7:5000",)}),
    ("channels", {"channels": ("tcp://192.0.2.1:5000",) * 65}),
    *(("tp_group", tp_group(place)) for place in TEAMS),
    ("tp_group", {"tp_group": "file:///home/user/thesis.txt"}),
    ("role", {"role": Role.DRAFT}),
    ("role", {"models": {}}),
    ("models", {"models": {Role.TARGET: ModelRef(model="/etc", dtype="float32")}}),
    ("models", {"models": {Role.TARGET: TARGET.model_copy(update={"inflate": "layers=1000000000"})}}),
    ("device", {"device": "cuda"}),
    ("devices", {"devices": ()}),
    ("devices", {"devices": (-1,)}),
    ("devices", {"devices": (2,)}),
    ("devices", {"devices": (0,) * 10**6}),
    ("size", {"size": 0}),
    ("size", {"size": 10**11}),
    ("rank", {"rank": -1}),
    ("rank", {"rank": 1}),
    ("group", {"group": -1}),
    ("group", {"group": 10**11}),
    ("max_context", {"max_context": 0}),
    ("max_context", {"max_context": MOST_CONTEXT + 1}),
    ("max_context", {"max_context": 10**11}),
    ("tree_slots", {"tree_slots": 0}),
    ("tree_slots", {"tree_slots": 10**11}),
    ("max_running", {"max_running": 0}),
    ("max_running", {"max_running": 10**11}),
    ("batch", {"batch": BatchLimits(gather_s=10**11)}),
    ("batch", {"batch": BatchLimits(prefill_rows=10**11)}),
    *(("report_every_s", {"report_every_s": seconds}) for seconds in (-1.0, 2.0, math.inf, math.nan)),
    ("silent", {"silent": True}),
]


@pytest.mark.parametrize(("field", "changes"), HOSTILE)
def test_a_hostile_field_is_named_and_refused(
    field: str, changes: dict[str, Any], admission: Admission, folder: Path
) -> None:
    with pytest.raises(ValueError, match=rf"^node 0 asks for a process whose {field} is .*; expected ") as caught:
        admission.check(honest(**placed(changes, folder)))
    assert len(str(caught.value)) < 600


def test_no_field_is_left_out() -> None:
    """`curve` never comes over the network: every node fills it in by itself."""
    assert {field for field, _ in HOSTILE} == {field.name for field in fields(Setup)} - {"curve"}
    assert honest(curve=Curve.derived(b"s" * 32)).curve is not None


@pytest.mark.parametrize(
    ("place", "is_allowed"),
    [
        ("TMP/swiftspec-run-other", True),
        ("TMP/swiftspec-run-none", False),
        ("TMP/swiftspec-run-open", False),
        ("TMP/swiftspec-run-link", False),
        ("TMP/swiftspec-run-own/../swiftspec-run-other", False),
        ("TMP/other", False),
        ("/home/user", False),
    ],
)
def test_processes_of_one_machine_may_name_each_others_folders(
    place: str, is_allowed: bool, admission: Admission, folder: Path
) -> None:
    shared = replace(admission, shares_machine=True)
    for changes in ({"channels": (f"ipc://{place}/channel-0",)}, tp_group(f"file://{place}/tp-group-target-0-1")):
        if is_allowed:
            shared.check(honest(**placed(changes, folder)))
        else:
            with pytest.raises(ValueError, match="node 0 asks for a process whose"):
                shared.check(honest(**placed(changes, folder)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_named(admission: Admission, folder: Path) -> None:
    os.chown(folder.parent / "swiftspec-run-other", 12345, 12345)
    with pytest.raises(ValueError, match="whose channels is"):
        replace(admission, shares_machine=True).check(
            honest(**placed({"channels": ("ipc://TMP/swiftspec-run-other/channel-0",)}, folder))
        )
