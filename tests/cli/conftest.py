import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.profiler.effort import Effort
from tests.cli import samples
from tests.cli.tokenizer_files import write_printable_tokenizer

TEXTS = ("def add(a, b):\n", "import os\n", "class Tree:\n    def __init__(self", "for i in range(10):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Files that the verbs before `run` leave in a folder."""

    folder: Path
    target: Path
    draft: Path
    prompts: Path
    profile: Path
    trace: Path
    plan: Path

    @classmethod
    def within(cls, folder: Path) -> "Stage":
        return cls(
            folder=folder,
            target=folder / "target",
            draft=folder / "draft",
            prompts=folder / "prompts.jsonl",
            profile=folder / "profile.json",
            trace=folder / "trace.npz",
            plan=folder / "plan.json",
        )

    def pair(self) -> list[str]:
        return ["--target", str(self.target), "--draft", str(self.draft)]


@contextmanager
def brief_profiles() -> Iterator[None]:
    """Profiles that are enough for a plan, not for a good one: in full they take many times as long."""
    brief = Effort(passes=1, contexts=2, repeats=1, host_tokens=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.profiler.effort._LADDER", (brief,))
        patch.setattr("swiftspec.profiler.passes.REPEATS", 1)
        patch.setattr("swiftspec.profiler.passes.CONTEXTS", (16, 64))
        patch.setattr("swiftspec.profiler.passes.PAUSE_REPEATS", 1)
        yield


def write_models(folder: Path) -> tuple[Path, Path]:
    pytest.importorskip("torch", reason="the extra `engine` is not installed")
    from tests.engine.pairs import write_pair

    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    return pair


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random target and its draft with a tokenizer; whoever damages them makes a copy first."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def little_text() -> Iterator[None]:
    """Plans for other hardware on enough synthesised text for a plan, not for a good one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.planner.for_device.NUM_PROMPTS", 2)
        patch.setattr("swiftspec.planner.for_device.NUM_NEW_TOKENS", 32)
        yield


def write_prompts(path: Path) -> Path:
    path.write_text("\n".join(json.dumps({"id": f"text-{i}", "prompt": text}) for i, text in enumerate(TEXTS)))
    return path


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Profile, trace and plan of a pair on up to two devices, made by the verbs, once for all workers of xdist."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = Stage.within(folder / "stage")
    with (folder / "stage.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.folder.exists():
            made.folder.mkdir()
            try:
                make_trace(made)
                make_plan(made)
            except BaseException:
                shutil.rmtree(made.folder)  # the next worker says what is wrong, too
                raise
    return made


def make_trace(stage: Stage) -> None:
    """The pair, its prompts and their trace."""
    write_models(stage.folder)
    write_prompts(stage.prompts)
    trace = ["trace", *stage.pair(), "--prompts", str(stage.prompts), "--dtype", "fp32", "--max-new-tokens", "12"]
    assert main([*trace, "--out", str(stage.trace), "--json", str(stage.folder / "trace-result.json")]) == 0


def make_plan(stage: Stage) -> None:
    """The profile, and the plan by it and the trace."""
    devices = str(min(2, len(os.sched_getaffinity(0))))
    profile = ["profile", *stage.pair(), "--devices", devices, "--dtype", "fp32", "--out", str(stage.profile)]
    with brief_profiles():
        assert main([*profile, "--json", str(stage.folder / "profile-result.json")]) == 0
    files = ["--profile", str(stage.profile), "--trace", str(stage.trace)]
    plan = ["plan", *stage.pair(), *files, "--jobs", "1", "--out", str(stage.plan)]
    plan += ["--report", str(stage.folder / "plan.html")]
    assert main([*plan, "--json", str(stage.folder / "plan-result.json")]) == 0


@pytest.fixture(scope="session")
def slow_plan(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for a target so deep, and without an end of sequence, that there is time to interrupt it."""
    folder = tmp_path_factory.mktemp("slow")
    copies = shutil.copytree(models[0], folder / "target"), shutil.copytree(models[1], folder / "draft")
    for directory in copies:
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
        (directory / "generation_config.json").unlink()  # which has the end, too
    from tests.engine.pairs import references

    target, draft = references(copies, inflate="layers=96,hidden=192")
    samples.plan(target=target, draft=draft).save(folder / "plan.json")
    return folder / "plan.json"


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a verb that must fail as a user's mistake does; the sentence."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert (code, captured.out) == (2, "")
        (line,) = captured.err.splitlines()
        assert line.startswith("swiftspec: error: ")
        return line.removeprefix("swiftspec: error: ")

    return run
