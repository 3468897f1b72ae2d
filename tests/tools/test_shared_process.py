"""Both roles in one process, a thread each, as they share a GPU; calls that need a GPU go to a fake one."""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.errors import EngineError
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.asynchronous.pearl import Pearl
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from tests.engine.conftest import start_engine, two_cores
from tests.engine.pairs import references, write_pair
from tests.engine.processes import gone_within, workers
from tools.shared_process import ThreadExecutor, own_stream

PROMPT = tuple(range(1, 40))


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """Directories of a target and a draft."""
    return write_pair(tmp_path, architecture="llama")


@contextmanager
def threads(pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with tempfile.TemporaryDirectory() as folder, shared_fork_server() as fork_server:
        executor = ThreadExecutor(Path(folder), fork_server)
        with start_engine(pair, Layout.DISAGGREGATED, executor=executor, patience_s=5.0) as engine:
            yield engine


def output(engine: Launcher, policy: Policy, sampler: Sampler) -> tuple[int, ...]:
    request = Request(prompt=PROMPT, max_new_tokens=60, eos_token_ids=frozenset({0}))
    return engine.generate(policy, request, request_id="test", sampler=sampler).tokens


@two_cores
def test_roles_are_threads_of_one_process_and_say_what_the_target_says(models: tuple[Path, Path]) -> None:
    pair = references(models)
    with start_engine(pair, Layout.COLOCATED) as colocated, threads(pair) as engine:
        target, draft = engine.processes
        assert target.pid == draft.pid
        assert not set(target.cores) & set(draft.cores)
        for sampler in (Sampler(), Sampler(temperature=0.8, seed=3)):
            expected = output(colocated, Autoregressive(), sampler)
            for policy in (SwiftSpec(), Pearl()):
                assert output(engine, policy, sampler) == expected
    assert gone_within([target.pid], 30.0)


@two_cores
def test_its_end_is_that_of_both(models: tuple[Path, Path]) -> None:
    with threads(references(models)) as engine:
        os.kill(engine.processes[0].pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="the target process ended unexpectedly"):
            output(engine, SwiftSpec(), Sampler())


@two_cores
def test_a_role_that_cannot_be_loaded_leaves_no_process(models: tuple[Path, Path]) -> None:
    (models[1] / "model.safetensors").write_bytes(b"not weights")
    running = workers(os.getpid())
    with pytest.raises(ValueError, match=str(models[1])), threads(references(models)):
        pass
    assert workers(os.getpid()) == running


def test_a_core_has_no_streams() -> None:
    with own_stream("cpu"):
        pass
