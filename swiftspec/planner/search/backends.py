"""Backends of simulations: this machine's cores, or an existing Dask or Ray cluster, through joblib."""

import gc
import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import joblib

from swiftspec.errors import EXTRAS, FieldError, check_extra
from swiftspec.interpreters import ray_options, safe_multiprocessing
from swiftspec.models.names import unknown
from swiftspec.planner.search.helpers import CAN_FORK, Call, divided

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def _connect_to_dask() -> None:
    """Let joblib's backend use the program's client, or a new one; its address comes from Dask's configuration."""
    distributed = import_module("distributed")
    try:
        distributed.get_client()
    except ValueError:
        address = import_module("dask").config.get("scheduler-address", None)
        if not address:  # a client without one would start a cluster of its own
            raise FieldError("backend", "'dask'", "expected a scheduler's address in DASK_SCHEDULER_ADDRESS") from None
        try:
            distributed.Client()
        except OSError as error:
            raise FieldError("backend", "'dask', but no scheduler answers", f"expected one at {address}") from error


def _connect_to_ray() -> None:
    """Let joblib's backend use the program's connection, or a new one to the cluster of this machine or RAY_ADDRESS."""
    ray = import_module("ray")
    if not ray.is_initialized():
        try:
            with ray_options() as options:
                ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR, **options)
        except ConnectionError as error:
            raise FieldError(
                "backend",
                "'ray', but no cluster is here",
                "expected one that runs, or its address in RAY_ADDRESS",
            ) from error
    import_module("ray.util.joblib").register_ray()


# Name -> its package, and the call that registers it with joblib.
BACKENDS: Mapping[str, tuple[str, Callable[[], None]]] = {
    "loky": ("joblib", lambda: None),
    "dask": ("distributed", _connect_to_dask),
    "ray": ("ray", _connect_to_ray),
}


def check_backend(name: str, *, field: str = "backend") -> None:
    """ValueError, naming the field, if the name is unknown, or its package is not installed."""
    if name not in BACKENDS:
        raise unknown(field, name, BACKENDS)
    package, _ = BACKENDS[name]
    if package in EXTRAS:
        check_extra(package, needed_by=f"{field} {name!r}")
    elif find_spec(package) is None:
        raise FieldError(field, f"{name!r}, which needs the package {package}", "it is not installed")


@contextmanager
def parallel_backend(name: str | None) -> Iterator[None]:
    """Context in which joblib's work goes to this backend; None leaves joblib as it is configured.

    ValueError: as `check_backend`; or if there is no cluster.
    """
    if name is None:
        yield
        return
    check_backend(name)
    _, connect = BACKENDS[name]
    connect()
    with joblib.parallel_config(backend=name):
        yield


def run_parallel(calls: Iterable[Call], num_jobs: int) -> Iterator[Any]:
    """Results of joblib's delayed calls, in their order; one by one if the backend in use can, else at the end.

    No backend is named, so that `joblib.parallel_config` can send the calls to a cluster. Where it does not, they are
    made here. num_jobs: processes, this one among them; -1 for one per core.
    """
    backend, _ = joblib.parallel.get_active_backend()
    if type(backend) is joblib.parallel.LokyBackend and (CAN_FORK or num_jobs == 1):
        return divided(list(calls), (joblib.cpu_count() if num_jobs == -1 else num_jobs) - 1)
    way = "generator" if backend.supports_return_generator else "list"  # Ray's does not
    with safe_multiprocessing():
        return iter(joblib.Parallel(n_jobs=num_jobs, return_as=way)(calls))


class Workers(Generic[_Task, _Result]):
    """Processes that call one function for many tasks.

    function: can be pickled; what it computes and keeps is kept here, and in the processes of a cluster. It is pickled
    once, and a process unpickles it once, however many tasks it has. num_jobs: as in `run_parallel`.
    """

    def __init__(self, function: Callable[[_Task], _Result], num_jobs: int) -> None:
        self._function, self._num_jobs = function, num_jobs

    def map(self, tasks: Iterable[_Task]) -> Iterator[_Result]:
        """Results in the order of the tasks."""
        return run_parallel((joblib.delayed(self)(task) for task in tasks), self._num_jobs)

    def __call__(self, task: _Task) -> _Result:
        """Make one call, here or, pickled, as the function alone elsewhere."""
        return self._function(task)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _unpickled, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self._function)


@lru_cache(maxsize=2)
def _unpickled(pickled: bytes) -> Any:
    return pickle.loads(pickled)


@contextmanager
def uncollected() -> Iterator[None]:
    """Context without garbage collection, which takes a quarter of a simulation's time and frees next to nothing.

    What a simulation leaves behind is collected after it, so it should be a short one.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
