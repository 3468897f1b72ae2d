"""Engines on a real Ray cluster of several nodes on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from swiftspec import Engine
from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.engine.cluster.ray_cluster import ray_executor
from swiftspec.policies.effects import Role
from tests.cli import samples
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.conftest import two_cores
from tests.engine.hosts import ROOT
from tests.engine.pairs import references, write_pair
from tests.engine.processes import children, gone_within, until

cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.alone, two_cores]
TEXTS = [f"def function_{number}(argument):" for number in range(24)]
SMALL = {"object_store_memory": 80 * 2**20}
Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and three nodes with one each: a target, a draft, and room for another draft."""
    with pytest.MonkeyPatch.context() as patched, TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        patched.setenv("PYTHONPATH", str(ROOT))
        patched.setenv("RAY_TMPDIR", folder)
        quick = {"health_check_period_ms": 500, "health_check_timeout_ms": 500, "health_check_failure_threshold": 2}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick, **SMALL}
        made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        for _ in range(3):
            made.add_node(num_cpus=1, **SMALL)
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target on device 0, draft on device 1; a random pair."""
    folder = tmp_path_factory.mktemp("ray")
    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    samples.plan(target=target, draft=draft).save(folder / "plan.json")
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


@pytest.fixture
def started(plan: Path, cluster: Any) -> Iterator[Started]:
    """`swiftspec run` on the cluster over all texts."""
    processes: list[subprocess.Popen[str]] = []

    def start(result: Path, *flags: str) -> subprocess.Popen[str]:
        prompts = ["--prompts", str(plan.parent / "prompts.jsonl"), "--max-new-tokens", "60", "--json", str(result)]
        command = [sys.executable, "-m", "swiftspec", "run", "--plan", str(plan), "--ray", cluster.address, *prompts]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen([*command, *flags], stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def await_output(run: subprocess.Popen[str]) -> None:
    """Until the third text's heading: the engine is warm, and at work."""
    assert run.stdout
    for _ in range(3):
        while not run.stdout.readline().startswith("== "):
            assert run.poll() is None, run.communicate()


def family(pid: int) -> list[int]:
    return [pid, *(member for child in children(pid) for member in family(child))]


def raylets(cluster: Any) -> dict[int, Any]:
    """The nodes with CPUs, by the processes of each."""
    nodes = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    return {node.all_processes["raylet"][0].process.pid: node for node in nodes}


def hosts(cluster: Any) -> list[int]:
    """Everything that an engine has started on the cluster."""
    found = [member for raylet in raylets(cluster) for member in family(raylet)]
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found if Path(f"/proc/{pid}").exists()}
    return [pid for pid, name in names.items() if b"fork_server" in name or b"_RayHost" in name]


def kill_node_of(cluster: Any, worker: int) -> None:
    """The node that a process of the engine runs on, as if its plug were pulled."""
    raylet = next(raylet for raylet in raylets(cluster) if worker in family(raylet))
    for pid in family(raylet):
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(raylets(cluster)[raylet], allow_graceful=False)


def test_output_is_that_of_one_machine_and_nothing_is_left(
    started: Started, cluster: Any, tmp_path: Path, expected: list[list[int]]
) -> None:
    run = started(tmp_path / "result.json")
    await_output(run)
    processes = hosts(cluster)
    assert len(processes) == 6  # two each of actors, fork servers and workers
    _, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "ray" not in said.lower()
    assert outputs(tmp_path / "result.json") == expected
    result = json.loads((tmp_path / "result.json").read_text())
    (target,), (draft,) = [process["cores"] for process in result["processes"]]
    assert target != draft
    assert result["tokens_per_round"] > 1.05  # the draft's tokens came over
    assert gone_within(processes, 5.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_hosts_end_with_their_launcher(
    started: Started, cluster: Any, tmp_path: Path, number: signal.Signals, code: int, expected: list[list[int]]
) -> None:
    run = started(tmp_path / "cut.json")
    await_output(run)
    processes = hosts(cluster)
    run.send_signal(number)
    _, said = run.communicate(timeout=20)
    assert run.returncode == code, said
    assert gone_within(processes, 5.0)
    if number is not signal.SIGKILL:
        kept = outputs(tmp_path / "cut.json")
        assert all(output == whole[: len(output)] for output, whole in zip(kept, expected, strict=False))


def test_a_draft_whose_node_dies_comes_back_on_another(cluster: Any, plan: Path, expected: list[list[int]]) -> None:
    def generate(engine: Engine, text: str) -> list[int]:
        chunks = engine.generate(text, max_new_tokens=60)
        try:
            while True:
                next(chunks)
        except StopIteration as finished:
            return list(finished.value.tokens)

    with ray_executor(plan, address=cluster.address) as executor, Engine(plan, executor=executor) as engine:
        assert generate(engine, TEXTS[0]) == expected[0]
        victim = next(process.pid for process in engine.processes if process.role is Role.DRAFT)
        kill_node_of(cluster, victim)
        until(lambda: len(engine.processes) == 1, within_s=5.0)
        assert generate(engine, TEXTS[1]) == expected[1]
        until(lambda: len(engine.processes) == 2, within_s=40.0)
        assert generate(engine, TEXTS[2]) == expected[2]
    cluster.add_node(num_cpus=1, **SMALL)


def test_what_the_target_said_is_kept_when_its_node_dies(
    started: Started, cluster: Any, tmp_path: Path, expected: list[list[int]]
) -> None:
    run = started(tmp_path / "cut.json")
    await_output(run)
    core = min(os.sched_getaffinity(0))  # the target's
    kill_node_of(cluster, next(pid for pid in hosts(cluster) if os.sched_getaffinity(pid) == {core}))
    _, said = run.communicate(timeout=30)
    assert run.returncode == 3
    assert "error: the target process on " in said.splitlines()[-1]
    kept = outputs(tmp_path / "cut.json")
    assert len(kept) >= 2
    assert all(output == whole[: len(output)] for output, whole in zip(kept, expected, strict=False))
    cluster.add_node(num_cpus=1, **SMALL)


def test_a_cluster_without_room_says_what_it_has(cluster: Any, plan: Path) -> None:
    large = Plan.load(plan)
    chosen = large.chosen.model_copy(update={"groups": {Role.TARGET: tuple(range(5)), Role.DRAFT: (5,)}})
    large = large.model_copy(update={"chosen": chosen})
    sentence = (
        r"has no room within 0\.5 s for 5 CPUs for the target, 1 CPUs for the draft; of its \d CPUs, at most 1 on"
    )
    with pytest.raises(ValueError, match=sentence), ray_executor(large, address=cluster.address, within_s=0.5):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto"])
def test_no_cluster_is_an_error_at_once(
    plan: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1\n")  # of a cluster that was killed
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert main(["run", "--plan", str(plan), "--prompt", "a", "--ray", address]) == 2
    why = "no cluster answers (Connection refused); expected the address of one, or auto"
    assert capsys.readouterr().err == f"swiftspec: error: --ray is '{address}', where {why}\n"
