"""`swiftspec run` under torchrun, which starts a process for each rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

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

pytestmark = two_cores
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


def torchrun(
    plan: Path, result: Path, folder: Path, *, num_processes: int = 2, secret: bool = True
) -> subprocess.CompletedProcess[str]:
    flags = ["--plan", plan, "--prompts", plan.parent / "prompts.jsonl", "--max-new-tokens", 60, "--json", result]
    flags += ["--secret", plan.parent / "secret"] if secret else []
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_processes]
    return subprocess.run(
        [*map(str, command), "-m", "swiftspec", "run", *map(str, flags)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},  # torchrun leaves a folder there
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


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


def test_a_secret_is_needed(plan: Path, short_folder: Path, tmp_path: Path) -> None:
    done = torchrun(plan, tmp_path / "result.json", short_folder, secret=False)
    assert done.returncode == 1
    assert "error: --secret is missing; it is what keeps other users out" in done.stderr
