import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from swiftspec.artifacts.metrics import measure
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.engine.process.placement import LocalExecutor, Placement
from swiftspec.engine.process.protocol import Setup
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.engine.process.worker_handle import LocalWorker, Worker
from swiftspec.errors import EngineError
from swiftspec.files.document import ModelRef
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase
from tests.engine.commits import taken
from tests.engine.conftest import start_engine, two_cores
from tests.engine.pairs import references, write_pair
from tests.engine.processes import gone_within, until

Own = Callable[[tuple[int, ...]], tuple[int, ...]]
Spoken = tuple[tuple[ModelRef, ModelRef], tuple[int, ...]]
PROMPTS = ((5, 17, 3, 88, 41), (9,), tuple(range(1, 60)), (40, 40, 40, 41))
AS_THEY_COME = tuple(
    make_policy(name)
    for name, policy in POLICIES.items()
    if name != Autoregressive.name and DraftKind.SERIAL in policy.drafts
)
COLOCATED = (
    *(policy for policy in AS_THEY_COME if policy.layout is not Layout.DISAGGREGATED),
    SerialChain(num_draft_tokens=1),
    SerialChain(num_draft_tokens=5),
    SerialTree(verify_rows=6, expand_rows=3, expansions=3),
)
DISAGGREGATED = (
    *(policy for policy in AS_THEY_COME if policy.layout is Layout.DISAGGREGATED and policy.target_groups == 1),
    SwiftSpec(verify_rows=2, expand_rows=1, num_candidates=1, tree_capacity=4),
    SwiftSpec(verify_rows=16, expand_rows=6, num_candidates=3, tree_capacity=64),
)


TWO_TARGETS = (
    *(policy for policy in AS_THEY_COME if policy.target_groups == 2),
    Dsi(num_draft_tokens=1, target_groups=2, verify_rows=6),
)


FOLLOWING = Sampler(temperature=0.8)


def generate(engine: Launcher, policy: Policy, prompt: tuple[int, ...], sampler: Sampler | None = None) -> Generation:
    request = Request(prompt=prompt, max_new_tokens=48, eos_token_ids=frozenset({0}))
    return engine.generate(policy, request, request_id="test", sampler=sampler or Sampler())


@pytest.fixture(scope="session")
def own(colocated: Launcher) -> Own:
    """The target's own output for a prompt, decoded once."""

    @cache
    def own(prompt: tuple[int, ...]) -> tuple[int, ...]:
        return generate(colocated, Autoregressive(), prompt).tokens

    return own


@pytest.mark.parametrize("policy", COLOCATED, ids=str)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_colocated_output_is_the_autoregressive_one(
    colocated: Launcher, own: Own, policy: Policy, prompt: tuple[int, ...]
) -> None:
    assert generate(colocated, policy, prompt).tokens == own(prompt)


@two_cores
@pytest.mark.parametrize("policy", DISAGGREGATED, ids=str)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_disaggregated_output_is_the_autoregressive_one(
    disaggregated: Launcher, own: Own, policy: Policy, prompt: tuple[int, ...]
) -> None:
    assert generate(disaggregated, policy, prompt).tokens == own(prompt)


@two_cores
@pytest.mark.parametrize("policy", TWO_TARGETS, ids=str)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_output_of_two_target_groups_is_the_autoregressive_one(
    two_targets: Launcher, own: Own, policy: Policy, prompt: tuple[int, ...]
) -> None:
    assert generate(two_targets, policy, prompt).tokens == own(prompt)
    assert [process.group for process in two_targets.processes] == [0, 1, 0]


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def other_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """A pair of another architecture, and what its target says by itself."""
    pair = references(write_pair(tmp_path_factory.mktemp("other"), architecture=request.param))
    with start_engine(pair, Layout.TARGET_ONLY) as engine:
        tokens = generate(engine, Autoregressive(), PROMPTS[0]).tokens
    assert len(tokens) > 8
    return pair, tokens


@two_cores
@pytest.mark.parametrize(
    ("layout", "target_groups", "policies"),
    [
        (Layout.COLOCATED, 1, COLOCATED),
        (Layout.DISAGGREGATED, 1, DISAGGREGATED),
        (Layout.DISAGGREGATED, 2, TWO_TARGETS),
    ],
    ids=["co-located", "disaggregated", "two targets"],
)
def test_models_of_other_architectures_say_the_same_under_every_policy(
    other_pair: Spoken, layout: Layout, target_groups: int, policies: tuple[Policy, ...]
) -> None:
    pair, expected = other_pair
    with start_engine(pair, layout, target_groups=target_groups, patience_s=5.0) as engine:
        for policy in policies:
            assert generate(engine, policy, PROMPTS[0]).tokens == expected, policy


@two_cores
@pytest.mark.parametrize("policy", TWO_TARGETS, ids=str)
def test_both_target_groups_verify(two_targets: Launcher, policy: Policy) -> None:
    """In one of several requests: where cores are shared one group may be done before there is work for two."""
    verifying: set[int] = set()
    for _ in range(200):
        verifying |= {span.group for span in generate(two_targets, policy, PROMPTS[0]).timeline.phase(Phase.VERIFY)}
        if verifying == {0, 1}:
            return
    raise AssertionError(f"groups that verified: {verifying}")


@two_cores
@pytest.mark.parametrize("seed", range(4))
def test_sampled_output_does_not_depend_on_the_policy(
    colocated: Launcher, disaggregated: Launcher, two_targets: Launcher, seed: int
) -> None:
    sampler = Sampler(temperature=0.8, top_p=0.95, seed=seed)
    expected = generate(colocated, Autoregressive(), PROMPTS[0], sampler).tokens
    for engine, policies in (
        (colocated, COLOCATED),
        (disaggregated, DISAGGREGATED),
        (two_targets, TWO_TARGETS),
    ):
        assert {generate(engine, policy, PROMPTS[0], sampler).tokens for policy in policies} == {expected}


def test_drafts_are_accepted_sometimes_and_not_always(colocated: Launcher) -> None:
    timelines = [generate(colocated, SerialChain(num_draft_tokens=5), prompt).timeline for prompt in PROMPTS]
    assert 1.05 < measure(timelines).figures.tokens_per_round < 5.5


@two_cores
def test_roles_run_in_two_processes_on_disjoint_cores(disaggregated: Launcher) -> None:
    target, draft = disaggregated.processes
    assert (target.role, draft.role) == (Role.TARGET, Role.DRAFT)
    assert target.pid != draft.pid
    assert (target.device, draft.device) == ("cpu", "cpu")
    assert not set(target.cores) & set(draft.cores)
    assert os.sched_getaffinity(draft.pid) == set(draft.cores)


@two_cores
def test_tracks_do_not_overlap_and_tokens_add_up(disaggregated: Launcher) -> None:
    """The draft does all that it can in one of several requests: on busy cores it may be late in one."""
    phases: set[Phase] = set()
    for _ in range(20):
        generation = generate(disaggregated, SwiftSpec(), PROMPTS[0])
        for role in Role:
            spans = generation.timeline.of(role)
            assert all(before.end_s <= after.start_s for before, after in pairwise(spans))
        assert generation.timeline.num_tokens == len(generation.tokens)
        phases |= {span.phase for span in generation.timeline.of(Role.DRAFT)}
        if phases >= {Phase.EXPAND, Phase.SEND, Phase.WAIT}:
            return
    raise AssertionError(f"phases of the draft: {phases}")


def test_commits_arrive_in_order_while_it_runs(colocated: Launcher) -> None:
    pieces: list[tuple[int, ...]] = []
    request = Request(prompt=PROMPTS[0], max_new_tokens=30)
    policy = SerialChain(num_draft_tokens=3)
    generation = taken(colocated, policy, request, pieces.append)
    assert len(pieces) > 1
    assert sum(pieces, ()) == generation.tokens


def test_a_request_ends_with_whoever_took_its_tokens(colocated: Launcher) -> None:
    def refuse(_: tuple[int, ...]) -> None:
        raise OSError("no space left")

    request = Request(prompt=PROMPTS[0], max_new_tokens=200)
    with pytest.raises(OSError, match="no space left") as kept:  # with its traceback, and so all that is in its frames
        taken(colocated, Autoregressive(), request, refuse)
    assert all(worker_group.is_ready and not worker_group.num_open for worker_group in colocated._worker_groups), kept


def test_a_policy_for_another_layout_is_refused(colocated: Launcher) -> None:
    with pytest.raises(ValueError, match="swiftspec is disaggregated, but the engine is co-located"):
        generate(colocated, SwiftSpec(), PROMPTS[0])


@two_cores
def test_a_policy_for_other_target_groups_is_refused(disaggregated: Launcher) -> None:
    with pytest.raises(ValueError, match="dsi needs 2 target groups; the engine has 1"):
        generate(disaggregated, Dsi(target_groups=2), PROMPTS[0])


def test_target_devices_that_cannot_be_split_are_refused(pair: tuple[ModelRef, ModelRef]) -> None:
    target, draft = pair
    groups = {Role.TARGET: (0,), Role.DRAFT: (0,)}
    with pytest.raises(ValueError, match="target is placed on 1 devices; expected 2 equal groups"):
        Launcher(
            {Role.TARGET: target, Role.DRAFT: draft},
            Placement(groups=groups, target_groups=2),
            layout=Layout.DISAGGREGATED,
            max_context=64,
        )


def test_residual_sampling_needs_both_models_in_one_process(colocated: Launcher) -> None:
    sampler = Sampler(temperature=1.0, acceptance="residual")
    output = generate(colocated, SerialTree(), PROMPTS[0], sampler).tokens
    assert output == generate(colocated, SerialTree(), PROMPTS[0], sampler).tokens
    assert output != generate(colocated, SerialTree(), PROMPTS[0], Sampler(temperature=1.0)).tokens


@two_cores
@pytest.mark.parametrize("name", ["pearl", "amusd", "ssd", "specbranch", "mirror", "minedraft"])
def test_residual_sampling_of_chains_from_another_process(disaggregated: Launcher, name: str) -> None:
    sampler = Sampler(temperature=0.8, seed=5, acceptance="residual")
    generation = generate(disaggregated, make_policy(name), PROMPTS[0], sampler)
    assert generation.losses == 0
    assert (
        generation.tokens != generate(disaggregated, make_policy(name), PROMPTS[0], replace(FOLLOWING, seed=5)).tokens
    )


@two_cores
@pytest.mark.parametrize("policy", [SwiftSpec(), make_policy("swiftspec_chain")], ids=str)
def test_a_tree_that_grows_over_rounds_is_followed(disaggregated: Launcher, policy: Policy) -> None:
    outputs = {
        generate(disaggregated, policy, PROMPTS[0], replace(FOLLOWING, acceptance=method)).tokens
        for method in ("follow", "residual")
    }
    assert len(outputs) == 1


def test_a_request_over_the_context_is_refused(colocated: Launcher) -> None:
    with pytest.raises(
        ValueError, match=r"prompt has 250 tokens; with 48 output tokens that is more than the context of 256"
    ):
        generate(colocated, Autoregressive(), (1,) * 250)


def test_a_model_that_cannot_be_loaded_is_one_sentence(models: tuple[Path, Path]) -> None:
    (models[0] / "model.safetensors").write_bytes(b"not a checkpoint")
    reference = ModelRef(model=str(models[0]), dtype="float32")
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        start_engine((reference, reference), Layout.COLOCATED)


def test_a_device_that_does_not_exist_is_named() -> None:
    reference = ModelRef(model="nowhere", dtype="float32")
    with pytest.raises(ValueError, match=r"target is placed on devices \[4096\]; this machine offers"):
        Launcher(
            {Role.TARGET: reference},
            Placement(groups={Role.TARGET: (4096,)}),
            layout=Layout.TARGET_ONLY,
            max_context=8,
        )


def test_a_killed_process_is_reported(models: tuple[Path, Path]) -> None:
    with start_engine(references(models), Layout.COLOCATED) as engine:
        os.kill(engine.processes[0].pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="the target process ended unexpectedly"):
            generate(engine, Autoregressive(), PROMPTS[0])


LONG_RUN = """
import sys
from swiftspec.files.document import ModelRef
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.placement import Placement
from swiftspec.policies import Layout, Request, make_policy
from swiftspec.policies.effects import Role
target, draft = [ModelRef(model=path, dtype="float32") for path in sys.argv[1:3]]
layout, policy = Layout(sys.argv[3]), make_policy(sys.argv[4])
groups = {Role.TARGET: (0,)} | ({Role.DRAFT: (1,)} if layout is Layout.DISAGGREGATED else {})
models = {Role.TARGET: target, Role.DRAFT: draft}
with Launcher(models, Placement(groups=groups), layout=layout, max_context=256) as engine:
    print(*(process.pid for process in engine.processes), flush=True)
    while True:
        request = Request(prompt=(5, 6, 7), max_new_tokens=200)
        generation = engine.generate(policy, request, request_id="x", sampler=Sampler())
        if generation.interrupted:
            print("kept", len(generation.tokens), len(generation.timeline.commits), flush=True)
            break
"""
LAYOUTS = [("co-located", "serial_tree"), pytest.param(("disaggregated", "swiftspec"), marks=two_cores)]


@pytest.fixture
def long_run(models: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", LONG_RUN, *map(str, models), *request.param]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("long_run", LAYOUTS, indirect=True)
def test_ctrl_c_keeps_what_was_generated_and_ends_every_process(long_run: subprocess.Popen[str]) -> None:
    assert long_run.stdout
    pids = [int(pid) for pid in long_run.stdout.readline().split()]
    time.sleep(0.5)
    os.killpg(long_run.pid, signal.SIGINT)
    assert gone_within(pids, 30.0)
    words = long_run.stdout.read().split()
    assert words[0] == "kept"
    assert long_run.wait() == 0


@pytest.mark.parametrize("long_run", LAYOUTS, indirect=True)
def test_no_process_outlives_a_killed_launcher(long_run: subprocess.Popen[str]) -> None:
    assert long_run.stdout
    pids = [int(pid) for pid in long_run.stdout.readline().split()]
    long_run.kill()
    long_run.wait()
    assert gone_within(pids, 30.0)


@two_cores
def test_the_channels_folder_is_removed(
    models: tuple[Path, Path], short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    with start_engine(references(models), Layout.DISAGGREGATED):
        assert len(list(short_folder.iterdir())) == 1
    assert list(short_folder.iterdir()) == []


class Suspending(LocalExecutor):
    """This machine, with processes that are suspended as soon as they are there."""

    def start(self, setup: Setup) -> Worker:
        worker = super().start(setup)
        assert isinstance(worker, LocalWorker)
        until(lambda: worker.poll() or worker.state != "not yet forked")
        os.kill(pid_of(worker), signal.SIGSTOP)
        return worker


def pid_of(worker: LocalWorker) -> int:
    found = re.match(r"process (\d+), ", worker.state)
    assert found
    return int(found[1])


def test_a_process_that_is_suspended_while_it_loads_is_named(
    pair: tuple[ModelRef, ModelRef], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("swiftspec.engine.launcher._SAY_AFTER_S", 0.2)
    said = re.compile(r"still waiting for models to be loaded by: target \(process (\d+), suspended\)")
    with run_folder() as folder, shared_fork_server() as fork_server, ThreadPoolExecutor() as threads:
        executor = Suspending(folder, fork_server)
        starting = threads.submit(start_engine, pair, Layout.COLOCATED, executor=executor)
        until(lambda: starting.done() or said.search(caplog.text) is not None)
        found = said.search(caplog.text)
        assert found
        os.kill(int(found[1]), signal.SIGCONT)
        with starting.result(timeout=120) as engine:
            assert len(engine.processes) == 1
