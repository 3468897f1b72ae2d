"""The runs on a GPU, dry: every step for real on a CPU, kernels in the interpreter, and the files that they return."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import two_cores

pytestmark = pytest.mark.extra("engine")

ROOT = Path(__file__).resolve().parents[1]
HANG_S = 3600


def start(*options: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    variables |= {"OUT": str(folder), "PYTHON": sys.executable, "CARRIED": str(folder / "nothing")} | environment
    command = [str(ROOT / "scripts/gpu_runs.sh"), *options]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=HANG_S)


def brought_home(folder: Path) -> dict[str, Any]:
    """The document of a dry run, none of whose steps failed."""
    assert {path.name for path in folder.iterdir()} == {"all.tar.gz", "summary.txt", "log.txt", "records.jsonl"}
    with tarfile.open(folder / "all.tar.gz") as archive:
        member = archive.extractfile("./run.json")
        assert member is not None
        document: dict[str, Any] = json.load(member)
        assert "./summary.txt" in archive.getnames()
    failed = {step["name"]: step["exit_code"] for step in document["steps"] if step["exit_code"] not in (0, 77)}
    assert not failed, (folder / "log.txt").read_text()[-4000:]
    assert document["dry_run"]
    assert document["environment"]["packages"]["torch"]
    return document


def kinds(document: dict[str, Any]) -> set[str]:
    return {found["kind"] for found in document["records"]}


@pytest.fixture
def straggling_python(tmp_path: Path) -> Iterator[Path]:
    """An interpreter each of whose runs leaves a process that keeps standard output open for ten minutes."""
    stragglers = tmp_path / "stragglers"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nsetsid sleep 600 &\necho $! >>{stragglers}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    yield python
    for pid in map(int, stragglers.read_text().split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_is_it_right(straggling_python: Path, tmp_path: Path) -> None:
    """And a process that outlives its step is not waited for."""
    folder = tmp_path / "out"
    done = start("1", "--dry-run", folder=folder, PYTHON=str(straggling_python))
    first, *_ = (tmp_path / "stragglers").read_text().split()
    assert Path("/proc", first).exists()
    document = brought_home(folder)
    assert done.returncode == 0
    tests = {step["name"]: step["tests"] for step in document["steps"] if step["tests"]}
    assert {name: set(counts) - {"skipped"} for name, counts in tests.items()} == {
        name: {"passed"} for name in ("tests-engine", "tests-kernels", "tests-ranks")
    }
    assert kinds(document) == {"copy", "read", "matrix product", "launch", "decoder", "greedy", "forward"}
    (decoder,) = (found for found in document["records"] if found["kind"] == "decoder")
    assert 0 < decoder["logits_error"] < 1e-5
    criteria = {criterion["name"]: criterion["held"] for criterion in document["criteria"]}
    assert criteria["greedy outputs that differ from the CPU's"] is True
    assert done.stdout.endswith((folder / "summary.txt").read_text())


def test_how_fast_it_is(tmp_path: Path) -> None:
    done = start("2", "--dry-run", folder=tmp_path)
    document = brought_home(tmp_path)
    assert done.returncode == 0
    assert kinds(document) == {"tuned", "forward", "attention splits", "copy", "product", "gate_up", "attention"}
    forwards = {(found["shape"], found["dtype"], found["products"]) for found in document["records"] if "pdl" in found}
    assert len(forwards) == 2 * (3 + 2 + 2)  # of bf16 all three ways, of fp8 and int4 two
    assert document["criteria"][0]["held"] is True
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        assert any("forward-32B-bfloat16-tuned" in name for name in archive.getnames())


@two_cores
def test_does_a_plan_hold(tmp_path: Path) -> None:
    done = start("3", "--dry-run", folder=tmp_path)
    document = brought_home(tmp_path)
    assert done.returncode == 0
    assert document["criteria"][-1]["found"] is not None
    ways = [found["way"] for found in document["records"] if found["kind"] == "sharing"]
    assert ways == ["target alone", "in turn", "two processes", "two streams"]
    assert not any(found["differing_outputs"] for found in document["records"] if found["kind"] == "sharing")
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        assert {"./profile.json", "./plan.json", "./validation.json", "./timeline.json", "./ops.npz"} <= set(
            archive.getnames()
        )


def test_packages_that_a_machine_lacks_are_all_named_at_once(tmp_path: Path) -> None:
    """PYTHONPATH is kept, too: the broken packages come from there."""
    shadow = tmp_path / "executor"
    shadow.mkdir()
    for name in ("simpy", "zmq"):
        (shadow / f"{name}.py").write_text(f"raise ImportError('no {name} on this machine')")
    done = start("3", "--dry-run", folder=tmp_path / "out", PYTHONPATH=str(shadow))
    assert done.returncode == 1
    for name in ("simpy", "zmq"):
        assert f"no {name} on this machine" in done.stderr
    assert "nothing else was run" in done.stderr
    assert "failed (1)" in (tmp_path / "out" / "summary.txt").read_text()
    assert "== profile:" not in done.stdout


@pytest.mark.parametrize("options", [[], ["4"], ["1", "--devise"], ["3", "--only", "plan,tune"]], ids=str)
def test_an_option_that_is_not_known_is_named(options: list[str], tmp_path: Path) -> None:
    done = start(*options, folder=tmp_path)
    assert done.returncode == 2
    assert "usage: gpu_runs.sh 1|2|3" in done.stderr
    assert not options or options[-1].split(",")[-1] in done.stderr
    assert list(tmp_path.iterdir()) == []
