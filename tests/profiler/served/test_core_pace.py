"""Pace of cores: sampled where and while it is asked for."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from swiftspec.external.group import process_group
from swiftspec.machine import cores_here
from swiftspec.profiler.served.core_pace import watched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to cores on Linux only")


def test_work_is_timed_on_every_core_while_it_is_watched() -> None:
    began_s, before = time.perf_counter(), threading.active_count()
    with watched(cores_here()) as pace:
        time.sleep(0.5)
        seconds = pace(began_s, time.perf_counter())
    assert 1e-5 < seconds < 1e-2
    assert threading.active_count() == before
    assert os.sched_getaffinity(0) == cores_here()


def test_no_core_changes_nothing_and_a_time_without_a_sample_has_the_nearest() -> None:
    with watched(frozenset()) as pace:
        assert pace(0.0, 1.0) == 1.0
    with watched(cores_here()) as pace:
        assert 1e-5 < pace(0.0, 1.0) < 1e-2


def test_a_program_computes_on_the_cores_that_its_threads_are_bound_to(tmp_path: Path) -> None:
    core = min(cores_here())
    program = f"import os, time; os.sched_setaffinity(0, {{{core}}}); print(flush=True); time.sleep(60)"
    out = tmp_path / "out"
    with (
        out.open("wb") as output,
        process_group(
            [sys.executable, "-c", program], environment=dict(os.environ), output=output, ends_within_s=5
        ) as one,
    ):
        until_s = time.monotonic() + 20
        while not out.stat().st_size and time.monotonic() < until_s:
            time.sleep(0.02)
        assert one.cores == {core}
    with (
        out.open("wb") as output,
        process_group(["sleep", "60"], environment=dict(os.environ), output=output, ends_within_s=5) as one,
    ):
        assert one.cores == cores_here()
