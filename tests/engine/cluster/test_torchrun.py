"""`swiftspec run` under torchrun, which starts a process for each rank."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.engine.channel.curve import write_secret
from swiftspec.policies.effects import Role
from tests.cli import samples
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.conftest import two_cores
from tests.engine.hosts import ROOT
from tests.engine.pairs import references, write_pair
from tests.engine.processes import children, until, workers

pytestmark = two_cores
# What torchrun tells its processes.
RANK_0_OF_2 = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
TEXTS = [f"def function_{number}(argument):" for number in range(3)]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target on device 0, draft on device 1; a random pair."""
    folder = tmp_path_factory.mktemp("torchrun")
    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    samples.plan(target=target, draft=draft).save(folder / "plan.json")
    write_secret(folder / "secret")
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    return folder / "plan.json"


@pytest.fixture(scope="module")
def expected(plan: Path) -> list[list[int]]:
    """The target's own output for every text, on one machine."""
    result = plan.parent / "expected.json"
    flags = ["--policy", "autoregressive", "--prompts", str(plan.parent / "prompts.jsonl"), "--json", str(result)]
    assert main(["run", "--plan", str(plan), "--max-new-tokens", "60", *flags]) == 0
    return outputs(result)


def outputs(result: Path) -> list[list[int]]:
    return [prompt["output_token_ids"] for prompt in json.loads(result.read_text())["prompts"]]


def command(plan: Path, result: Path, *, num_processes: int = 2, num_tokens: int = 60) -> list[str]:
    flags = [
        "--plan",
        plan,
        "--prompts",
        plan.parent / "prompts.jsonl",
        "--max-new-tokens",
        num_tokens,
        "--json",
        result,
        "--secret",
        plan.parent / "secret",
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_processes]
    return [*map(str, launcher), "-m", "swiftspec", "run", *map(str, flags)]


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}  # torchrun leaves a folder there


def torchrun(plan: Path, result: Path, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    asked = command(plan, result, **options)
    return subprocess.run(asked, env=environment(folder), capture_output=True, text=True, check=False, timeout=120)


def worker_of_rank(torchrun: int, rank: int) -> int | None:
    """The engine's process that belongs to a rank, once it is there."""
    for process in children(torchrun):
        with suppress(OSError):  # it may have ended meanwhile
            if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{process}/environ").read_bytes():
                return next(iter(workers(process)), None)
    return None


def test_a_process_for_each_rank(plan: Path, expected: list[list[int]], short_folder: Path, tmp_path: Path) -> None:
    done = torchrun(plan, tmp_path / "result.json", short_folder)
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path / "result.json") == expected
    processes = json.loads((tmp_path / "result.json").read_text())["processes"]
    assert len({core for process in processes for core in process["cores"]}) == 2


@pytest.mark.alone  # ranks that wait for each other take many times as long on busy cores
def test_a_role_of_several_ranks(plan: Path, expected: list[list[int]], short_folder: Path, tmp_path: Path) -> None:
    made, divided = Plan.load(plan), {"groups": {Role.TARGET: (0, 1)}, "ranks": {Role.TARGET: 2}}
    chain = made.candidates["serial_chain"].model_copy(update=divided)
    spread = plan.parent / "spread.json"
    made.model_copy(update={"chosen": chain, "alternatives": ()}).save(spread)
    done = torchrun(spread, tmp_path / "result.json", short_folder)
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path / "result.json") == expected


def test_another_number_of_processes_is_refused_by_all(plan: Path, short_folder: Path, tmp_path: Path) -> None:
    done = torchrun(plan, tmp_path / "result.json", short_folder, num_processes=3)
    assert done.returncode == 1
    assert "error: torchrun started 3 processes; swiftspec 1+1" in done.stderr
    assert "Unable to shutdown process" not in done.stderr


def test_a_secret_is_needed(plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in RANK_0_OF_2.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--plan", str(plan), "--prompt", "x"]) == 2
    assert "error: --secret is missing; it is what keeps other users out" in capsys.readouterr().err


def test_a_draft_that_is_killed_costs_no_output(plan: Path, short_folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.json"
    flags = ["--policy", "autoregressive", "--prompts", str(plan.parent / "prompts.jsonl"), "--json", str(alone)]
    assert main(["run", "--plan", str(plan), "--max-new-tokens", "200", *flags]) == 0
    asked = command(plan, tmp_path / "result.json", num_tokens=200)
    with subprocess.Popen(asked, env=environment(short_folder), stderr=subprocess.PIPE, text=True) as running:
        for _ in range(2):
            until(lambda: worker_of_rank(running.pid, 1) is not None or running.poll() is not None)
            with suppress(ProcessLookupError, TypeError):  # it may have ended
                os.kill(worker_of_rank(running.pid, 1), signal.SIGKILL)  # type: ignore[arg-type]  # None raises, see above
            time.sleep(0.3)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert outputs(tmp_path / "result.json") == outputs(alone)
