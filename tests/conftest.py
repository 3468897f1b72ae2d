import gc
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftspec.errors import EXTRAS, missing_packages
from tests.run import ALONE

MISSING = {extra for extra in EXTRAS if missing_packages(extra)}
pytest_plugins = ["pytester"]  # runs pytest itself, for the plugin of this package
if "engine" not in MISSING:
    pytest_plugins.append("tests.with_engine")
# Folders whose tests all need the engine. A file elsewhere says it by `pytestmark`, a test by the marker `extra`.
OF_THE_ENGINE = (
    "benchmarks",
    "clients",
    "demo",
    "engine",
    "kernels",
    "profiler",
    "pytest_plugin",
    "server",
    "studies/tenants",
    "tools",
)

# Files that take longest, longest first: begun last, one would keep a core busy while the others are idle.
LONGEST = (
    "test_gpu_runs.py",
    "engine/model/test_residual_law.py",
    "test_notebooks.py",
    "engine/test_launcher.py",
    "cli/test_pipeline.py",
    "engine/test_campaign.py",
    "planner/under_load/test_one_answer.py",
    "server/test_robustness.py",
    "cli/test_faults.py",
    "engine/cluster/test_torchrun.py",
    "validation/published/test_loads.py",
    "planner/under_load/test_engine_plans.py",
    "demo/test_pair.py",
    "test_api_reference.py",
    "simulator/test_published_policies.py",
    "policies/test_law.py",
    "cli/test_lacking.py",
    "engine/parallel/test_parallel.py",
    "engine/test_soak.py",
    "files/test_hostile.py",
    "planner/test_search.py",
    "simulator/test_real_draft.py",
    "engine/model/test_static_kernels.py",
    "studies/backtest/test_systems.py",
    "planner/test_stages.py",
    "planner/test_splits.py",
    "engine/test_load.py",
    "scheduler/test_group.py",
    "studies/backtest/test_loads.py",
    "kernels/test_all_reduce.py",
    "planner/test_backends.py",
    "studies/backtest/test_decoupled.py",
    "engine/test_blocks.py",
    "server/test_connections.py",
    "engine/process/test_fork_server_client.py",
)
FOLDER = Path(__file__).parent
OF_A_FILE = re.compile(r'^pytestmark = .*\bmark\.extra\("(\w+)"\)', re.MULTILINE)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking through all modules and tests, which it finds alive each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before any are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {FOLDER / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    for item in items:
        if lacking := [name for mark in item.iter_markers("extra") for name in mark.args if name in MISSING]:
            item.add_marker(pytest.mark.skip(f"the extra `{lacking[0]}` is not installed"))
    marked = {item.path for item in items if item.get_closest_marker("alone")}
    if hidden := [path for path in marked if not has_alone(path)]:
        raise pytest.UsageError(f"{hidden[0]} does not say `mark.alone`, by which its tests that run alone are found")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that cannot be imported without an extra; and, for tests marked `alone`, files without any."""
    if collection_path.suffix != ".py":
        is_engine = collection_path.relative_to(FOLDER).as_posix() in OF_THE_ENGINE
        return True if is_engine and "engine" in MISSING else None
    if MISSING.intersection(OF_A_FILE.findall(collection_path.read_text(encoding="utf-8"))):
        return True
    return True if config.getoption("markexpr") == ALONE and not has_alone(collection_path) else None


def has_alone(path: Path) -> bool:
    return "mark.alone" in path.read_text(encoding="utf-8")


# `nohup make test &` starts a program that ignores both, as all that it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 bytes: those of `tmp_path` may be longer."""
    with tempfile.TemporaryDirectory(prefix="test-", dir="/tmp") as folder:
        yield Path(folder)
