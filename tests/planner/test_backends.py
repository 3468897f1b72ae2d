import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.errors import FieldError
from swiftspec.planner.search.backends import parallel_backend, run_parallel
from swiftspec.planner.search.helpers import HelperLostError
from tests.builders import machine_profile
from tests.engine.processes import gone_within
from tests.planner.making import made_plan
from tools.iid_trace import synthesise_trace


def test_a_named_backend_is_joblibs_within_the_block() -> None:
    with parallel_backend("loky"):
        assert type(joblib.parallel.get_active_backend()[0]).__name__ == "LokyBackend"
    with joblib.parallel_config(backend="threading"), parallel_backend(None):
        assert type(joblib.parallel.get_active_backend()[0]).__name__ == "ThreadingBackend"


def test_an_unknown_backend_is_an_error() -> None:
    with (
        pytest.raises(ValueError, match="backend is 'slurm'; expected one of loky, dask, ray"),
        parallel_backend("slurm"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dask", "backend is 'dask', which needs the package distributed; it is not installed"),
        ("ray", r"backend 'ray' needs ray: pip install 'swiftspec-llm\[ray\]'"),
    ],
)
def test_a_backend_that_is_not_installed_says_what_it_needs(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.meta_path", [])
    for package in ("distributed", "ray"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(ValueError, match=message), parallel_backend(name):
        pass


LONG_WORK = """
import os, time
import joblib
from swiftspec.planner.search.backends import run_parallel

def work():
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(120)

list(run_parallel((joblib.delayed(work)() for _ in range(3)), 3))
"""


def test_no_helper_outlives_a_killed_program() -> None:
    with subprocess.Popen([sys.executable, "-c", LONG_WORK], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        pids = {int(program.stdout.readline()) for _ in range(3)}
        assert len(pids) == 3
        assert program.pid in pids
        program.kill()
        assert gone_within([pid for pid in pids if pid != program.pid], 20.0)


def pid_of_maker(number: int) -> tuple[int, int]:
    time.sleep(0.01)
    return number, os.getpid()


def test_results_come_in_order_from_the_program_and_its_helpers() -> None:
    found = list(run_parallel((joblib.delayed(pid_of_maker)(number) for number in range(40)), 3))
    assert [number for number, _ in found] == list(range(40))
    assert os.getpid() in {pid for _, pid in found}
    assert len({pid for _, pid in found}) == 3
    assert list(run_parallel([joblib.delayed(pid_of_maker)(7)], 3)) == [(7, os.getpid())]


def fail_elsewhere(program: int) -> None:
    """In a helper, raise; in the program, leave time for that."""
    if os.getpid() != program:
        raise FieldError("num_devices", 99, "expected 1 to 16")
    time.sleep(0.05)


def test_what_a_call_in_a_helper_raises_is_raised_here() -> None:
    with pytest.raises(FieldError, match="num_devices is 99; expected 1 to 16"):
        list(run_parallel((joblib.delayed(fail_elsewhere)(os.getpid()) for _ in range(40)), 2))


def end_elsewhere(program: int) -> None:
    if os.getpid() != program:
        os._exit(3)
    time.sleep(0.05)


def test_a_helper_that_ends_is_an_error_that_says_so() -> None:
    with pytest.raises(HelperLostError, match="ended unexpectedly, with exit code 3; --jobs 1 needs least memory"):
        list(run_parallel((joblib.delayed(end_elsewhere)(os.getpid()) for _ in range(40)), 2))


def test_results_that_nobody_takes_end_the_helpers() -> None:
    results = run_parallel((joblib.delayed(pid_of_maker)(number) for number in range(40)), 2)
    next(results)
    (helper,) = multiprocessing.active_children()
    results.close()  # type: ignore[attr-defined]  # a generator's
    assert not helper.is_alive()


def plan(backend: str) -> Plan:
    """A small real search."""
    return made_plan(
        profile=machine_profile(cost_ratio=15.0),
        trace=synthesise_trace((0.7, 0.12), prompt_lengths=(12,), num_tokens=32, seed=1),
        num_devices=2,
        policy="serial_chain",
        seed=0,
        num_jobs=2,
        progress=lambda *_: None,
        backend=backend,
    )


def found(plan: Plan) -> object:
    """What does not say when it was made."""
    return plan.model_dump(exclude={"origin"})


@pytest.fixture(scope="module")
def expected() -> object:
    return found(plan("loky"))


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Iterator[None]:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = pytest.importorskip("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, **small}
    )
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    ray.shutdown()
    cluster.shutdown()


def test_a_search_on_a_ray_cluster_finds_the_same(
    ray_cluster: None, expected: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its workers run nothing of the current folder, where Ray has them look for modules."""
    for name in ("swiftspec", "numpy", "joblib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'marks')!r}, 'a').write({name!r})")
    monkeypatch.chdir(tmp_path)
    assert found(plan("ray")) == expected
    assert not (tmp_path / "marks").exists()


def test_a_search_on_a_dask_cluster_finds_the_same(monkeypatch: pytest.MonkeyPatch, expected: object) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    dask = pytest.importorskip("dask")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        dask.config.set({"scheduler-address": cluster.scheduler_address}),
    ):
        try:
            assert found(plan("dask")) == expected
        finally:
            distributed.get_client().close()


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_backend_without_its_cluster_says_where_it_looked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[name])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ValueError, match=rf"backend is '{name}'.*; expected"), parallel_backend(name):
        pass
