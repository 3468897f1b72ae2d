"""`swiftspec run` on two nodes, as its user starts it: what it says, and what happens when a node goes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from swiftspec import __version__
from swiftspec.artifacts.document import file_sha256
from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.engine.channel.curve import Curve, read_secret, write_secret
from swiftspec.engine.cluster.connection import Link
from swiftspec.engine.cluster.nodes import free_ports
from swiftspec.engine.cluster.rendezvous import Rendezvous, meet
from swiftspec.engine.cluster.wire import Frame
from swiftspec.policies.effects import Role
from tests.cli import samples
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.conftest import two_cores
from tests.engine.hosts import ROOT, Host, in_namespaces, on_loopback
from tests.engine.pairs import references, write_pair
from tests.engine.processes import children, gone_within
from tests.engine.setups import node_facts, setup

pytestmark = [pytest.mark.alone, two_cores]
TEXTS = [f"def function_{number}(argument):" for number in range(24)]
Nodes = tuple[Host, Host]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target on device 0, draft on device 1; a random pair."""
    folder = tmp_path_factory.mktemp("nodes")
    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    samples.plan(target=target, draft=draft).save(folder / "plan.json")
    write_secret(folder / "secret")
    for name, texts in (("prompts.jsonl", TEXTS), ("few.jsonl", TEXTS[:3])):
        (folder / name).write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
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
def hosts() -> Iterator[Nodes]:
    """In namespaces of their own where these can be made; on loopback are those of other tests."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(in_namespaces())
        except pytest.skip.Exception:
            made = on_loopback()
        yield made


@contextmanager
def started(plan: Path, hosts: Nodes, *flags: object, secret: Path | None = None) -> Iterator[list[Any]]:
    """Both nodes of a run over all texts; whatever is left of them is killed in the end."""
    folder = plan.parent
    first = hosts[0].address
    port = free_ports("127.0.0.1", 1)[0]
    own = ["--prompts", folder / "prompts.jsonl", "--max-new-tokens", 60, *flags]
    nodes = []
    for rank, host in enumerate(hosts):
        named = ["--nnodes", 2, "--node-rank", rank, "--rendezvous", f"{first}:{port}", "--rendezvous-timeout", 30]
        file = secret if secret and rank else folder / "secret"
        nodes.append(host.start("run", "--plan", plan, *named, "--secret", file, *([] if rank else own)))
    try:
        yield nodes
    finally:
        for node in nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.communicate()


def ended(node: subprocess.Popen[str], within_s: float) -> tuple[int, str]:
    """Exit code and what it said on stderr."""
    _, said = node.communicate(timeout=within_s)
    return node.returncode, said


def await_output(node: subprocess.Popen[str]) -> None:
    """Until the third text's heading: the engine is warm, and at work."""
    assert node.stdout
    for _ in range(3):
        while not node.stdout.readline().startswith("== "):
            assert node.poll() is None, node.communicate()


def test_output_of_two_nodes_is_that_of_one_machine(plan: Path, hosts: Nodes, expected: list[list[int]]) -> None:
    result, timeline = plan.parent / "result.json", plan.parent / "timeline.json"
    with started(plan, hosts, "--json", result, "--timeline", timeline) as (first, other):
        code, said = ended(first, 60)
        assert (code, ended(other, 10)[0]) == (0, 0), said
    assert outputs(result) == expected
    run = json.loads(result.read_text())
    assert [(process["role"], process["node"]) for process in run["processes"]] == [("target", 0), ("draft", 1)]
    assert run["tokens_per_round"] > 1.05  # the draft's tokens came over
    assert 0 < run["overlap_fraction"] <= 1  # and its times are in node 0's clock


@pytest.fixture
def turned(plan: Path) -> Path:
    """The plan with the target on node 1."""
    made, path = Plan.load(plan), plan.parent / "turned.json"
    chosen = made.chosen.model_copy(update={"groups": {Role.TARGET: (1,), Role.DRAFT: (0,)}})
    made.model_copy(update={"chosen": chosen}).save(path)
    return path


def test_a_target_on_another_node_commits_through_it(turned: Path, expected: list[list[int]]) -> None:
    result, few = turned.parent / "turned-result.json", turned.parent / "few.jsonl"
    with started(turned, on_loopback(), "--prompts", few, "--json", result) as (first, _):
        assert ended(first, 60)[0] == 0
    assert outputs(result) == expected[:3]


def test_what_the_target_said_is_kept_when_its_node_is_killed(turned: Path, expected: list[list[int]]) -> None:
    result = turned.parent / "cut.json"
    with started(turned, on_loopback(), "--json", result) as (first, other):
        await_output(first)
        os.killpg(other.pid, signal.SIGKILL)
        code, said = ended(first, 60)
    assert code == 3
    assert "error: the target process was on node 1, which has gone: it ended" in said.splitlines()[-1]
    kept = outputs(result)
    assert len(kept) >= 2
    assert all(output == whole[: len(output)] for output, whole in zip(kept, expected, strict=False))


def test_a_role_may_span_nodes(plan: Path, expected: list[list[int]]) -> None:
    made, spread, result = Plan.load(plan), plan.parent / "spread.json", plan.parent / "spread-result.json"
    divided = {"groups": {Role.TARGET: (0, 1)}, "ranks": {Role.TARGET: 2}}
    chain = made.candidates["serial_chain"].model_copy(update=divided)
    made.model_copy(update={"chosen": chain, "alternatives": ()}).save(spread)
    few = plan.parent / "few.jsonl"
    with in_namespaces() as hosts, started(spread, hosts, "--prompts", few, "--json", result) as (first, _):
        code, said = ended(first, 120)
        assert code == 0, said
    assert outputs(result) == expected[:3]
    processes = json.loads(result.read_text())["processes"]
    assert [(process["rank"], process["node"]) for process in processes] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("num_processes", "code"), [(2, 0), (3, 1)])
def test_torchrun_starts_a_process_for_each_rank(
    plan: Path, expected: list[list[int]], short_folder: Path, num_processes: int, code: int
) -> None:
    result = plan.parent / "torchrun.json"
    flags = ["--plan", plan, "--prompts", plan.parent / "few.jsonl", "--max-new-tokens", 60, "--json", result]
    flags += ["--secret", plan.parent / "secret"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_processes]
    done = subprocess.run(
        [*map(str, command), "-m", "swiftspec", "run", *map(str, flags)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(short_folder)},  # torchrun leaves a folder there
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    if code:
        assert "error: torchrun started 3 processes; swiftspec 1+1" in done.stderr
        assert "Unable to shutdown process" not in done.stderr  # the others hear that they are to end
    else:
        assert outputs(result) == expected[:3]


def test_a_node_with_another_secret_is_refused(plan: Path, tmp_path: Path) -> None:
    write_secret(tmp_path / "other")
    with started(plan, on_loopback(), "--rendezvous-timeout", 5, secret=tmp_path / "other") as (first, other):
        code, said = ended(other, 30)
        assert code == 2
        assert said.splitlines()[-1].startswith("swiftspec: error: node 0 at 127.0.0.1:")
        assert said.endswith("does not have the same secret; expected one file on all nodes\n")
        code, said = ended(first, 30)
        assert code == 2
        assert said.endswith("within 5 s; 1 connection without the secret was refused\n")


def test_without_a_secret_a_node_says_how_to_make_one(plan: Path) -> None:
    rendezvous = ["--nnodes", 2, "--node-rank", 1, "--rendezvous", "127.0.0.1:29500"]
    code, said = ended(on_loopback()[1].start("run", "--plan", plan, *rendezvous), 30)
    assert code == 2
    assert said == (
        "swiftspec: error: --secret is missing; it is what keeps other users out, even on one machine: make one with "
        "`swiftspec secret --out swiftspec.secret`, and give every node a copy\n"
    )


def test_node_0_cannot_make_another_node_touch_its_files(plan: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("precious")
    curve, host = Curve.derived(read_secret(plan.parent / "secret")), on_loopback()[1]
    port = free_ports(host.address, 1)[0]
    where = f"{host.address}:{port}"
    with (
        meet(Rendezvous.at(where, rank=0, num_nodes=2, timeout_s=30.0), curve) as meeting,
        Link(f"tcp://{host.address}:0", bind=True, curve=curve) as link,
    ):
        flags = ["--nnodes", 2, "--node-rank", 1, "--rendezvous", where, "--secret", plan.parent / "secret"]
        node = host.start("run", "--plan", plan, *flags)
        own = node_facts(0, plan_sha256=file_sha256(plan), version=__version__, links=(link.address,))
        meeting.exchange(own)
        link.await_peer(30.0)
        link.send(Frame(1, setup(models={Role.TARGET: Plan.load(plan).target}, channels=(f"ipc://{precious}",))))
        code, said = ended(node, 30)
    assert code == 2
    assert "error: node 0 asks for a process whose channels is " in said.splitlines()[-1]
    assert precious.read_text() == "precious"


def test_the_target_goes_on_without_a_node_that_is_killed(plan: Path, expected: list[list[int]]) -> None:
    result = plan.parent / "alone.json"
    with started(plan, on_loopback(), "--json", result) as (first, other):
        await_output(first)
        os.killpg(other.pid, signal.SIGKILL)
        code, said = ended(first, 60)
        assert code == 0, said
    assert outputs(result) == expected


def test_a_node_ends_soon_after_node_0_is_killed(plan: Path) -> None:
    with started(plan, on_loopback()) as (first, other):
        await_output(first)
        workers = children(other.pid)
        os.killpg(first.pid, signal.SIGKILL)
        assert_ends(other, workers, within_s=5)


def test_nodes_that_are_out_of_reach_end_or_go_on_alone(plan: Path, expected: list[list[int]]) -> None:
    result = plan.parent / "unplugged.json"
    with in_namespaces() as hosts, started(plan, hosts, "--json", result) as (first, other):
        await_output(first)
        workers = children(other.pid)
        hosts[0].unplug()
        assert_ends(other, workers, within_s=10)
        assert ended(first, 60)[0] == 0
    assert outputs(result) == expected


def assert_ends(node: subprocess.Popen[str], workers: list[int], *, within_s: float) -> None:
    start_s = time.monotonic()
    code, said = ended(node, within_s)
    assert (code, len(workers)) == (3, 1)
    assert said.splitlines()[-1] == "swiftspec: error: node 0 has gone: it ended, or was silent for 5 s"
    assert time.monotonic() - start_s < within_s
    assert gone_within(workers, 1.0)
