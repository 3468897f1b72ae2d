import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.process.timeouts import DraftRecovery
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas
from tests.engine.fake_workers import Engine
from tests.engine.pairs import references, with_mask_token, write_pair
from tests.engine.victims import generate

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="disaggregated policies need two cores")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    """A random target and its draft in fp32, with which every policy works."""
    return references(with_mask_token(write_pair(tmp_path_factory.mktemp("pair"), architecture="llama")))


def start_engine(
    pair: tuple[ModelRef, ModelRef],
    layout: Layout,
    *,
    target_groups: int = 1,
    replicas: Replicas = ONE_REPLICA,
    ranks: Mapping[Role, int] | None = None,
    **options: Any,
) -> Launcher:
    """A core a process; several of the target share both, those of the draft one: what they say is the same."""
    ranks = ranks or {}
    target_groups *= replicas.num_targets
    groups = {Role.TARGET: tuple(number % 2 for number in range(target_groups * ranks.get(Role.TARGET, 1)))}
    draft_groups = replicas.num_groups[Role.DRAFT]
    if layout is Layout.DISAGGREGATED:
        groups[Role.DRAFT] = (1,) * draft_groups * ranks.get(Role.DRAFT, 1)
    recovery = {name: options.pop(name) for name in ("patience_s", "max_restarts") if name in options}
    return Launcher(
        dict(zip((Role.TARGET, Role.DRAFT), pair, strict=True)),
        Placement(groups=groups, ranks=ranks, target_groups=target_groups, draft_groups=draft_groups),
        layout=layout,
        max_context=256,
        recovery=DraftRecovery(**recovery),
        replicas=replicas,
        **options,
    )


@pytest.fixture(scope="session")
def colocated(pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(pair, Layout.COLOCATED) as engine:
        yield engine


@pytest.fixture(scope="session")
def disaggregated(pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(pair, Layout.DISAGGREGATED, patience_s=5.0) as engine:
        yield engine


@pytest.fixture(scope="session")
def two_targets(pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    with start_engine(pair, Layout.DISAGGREGATED, target_groups=2, patience_s=5.0) as engine:
        yield engine


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """A fresh llama pair that a test may damage."""
    return write_pair(tmp_path, architecture="llama")


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """So many open that the next one has a number above 1023, as in a server with many connections."""
    most, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2048:
        if hard != resource.RLIM_INFINITY and hard < 2048:
            pytest.skip("this machine allows too few open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="session")
def slow_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    """A random pair whose target takes milliseconds for a forward, so that faults fall into the middle of a request."""
    pair = write_pair(tmp_path_factory.mktemp("slow"), architecture="llama")
    return references(pair, inflate="layers=16,hidden=192")


@pytest.fixture(scope="session")
def undisturbed(slow_pair: tuple[ModelRef, ModelRef]) -> tuple[int, ...]:
    """The slow pair's output for the request of `victims`, whatever happens to the draft."""
    with start_engine(slow_pair, Layout.COLOCATED) as engine:
        return generate(engine, Autoregressive()).tokens


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()
