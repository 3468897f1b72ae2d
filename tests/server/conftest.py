from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Running, running, write_plan


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(plan_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that all tests of a process share; whatever they send, it serves the next one."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with running(plan_file, "--model-name", "small", "--set", "max_running=4,keep_timelines=3", log=log) as server:
        yield server
