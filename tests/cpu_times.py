"""A pytest plugin: processor seconds of each test, of its processes too, as the property `cpu_s` of its report.

`make test` uses it, as a test's duration tells little on a machine that does other things meanwhile. What processes
cost that ended as orphans is lost; fixtures of a module count with its first test.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.engine.processes import children

CPU_S = "cpu_s"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_before = pytest.StashKey[float]()


def cpu_s() -> float:
    """Of this process, of those that it has started, and of those that these have."""
    total, pids = 0, [os.getpid()]
    while pids:
        pid = pids.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            pids += children(pid)
        except OSError:  # it has ended: its parent has its time
            continue
        total += sum(map(int, fields[11:15]))  # user and system time, its own and that of children it has waited for
    return total / _TICKS_PER_S


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_before] = cpu_s()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield
    item.user_properties.append((CPU_S, f"{max(0.0, cpu_s() - item.stash[_before]):.2f}"))
