"""Backends of simulations: this machine's cores, or an existing Dask or Ray cluster, through joblib."""

import gc
import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any, Generic, TypeVar

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import resource_tracker as loky_tracker

from swiftspec.errors import EXTRAS, FieldError, check_extra
from swiftspec.interpreters import ray_options, safe_multiprocessing, safe_path
from swiftspec.models.names import unknown

__all__ = [
    "BACKENDS",
    "SafeLoky",
    "Workers",
    "check_backend",
    "end_workers",
    "parallel_backend",
    "quiet_start",
    "run_parallel",
    "tied",
    "uncollected",
]

_LOOK_EVERY_S = 0.5
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


def run_parallel(calls: Iterable[Any], num_jobs: int) -> Iterator[Any]:
    """Results of joblib's delayed calls, in their order; one by one if the backend in use can, else at the end.

    No backend is named, so that `joblib.parallel_config` can send the calls to a cluster.
    """
    calls = tied(calls)
    backend, _ = joblib.parallel.get_active_backend()
    if backend.supports_return_generator:
        with quiet_start():
            results = joblib.Parallel(n_jobs=num_jobs, return_as="generator", backend=_safe(backend))(calls)
    else:  # Ray's: it starts no process here
        results = joblib.Parallel(n_jobs=num_jobs)(calls)
    yield from results


class Workers(Generic[_Task, _Result]):
    """Processes that call one function for many tasks, and keep it between them with all that it has computed.

    function: can be pickled. num_jobs: 1 starts no process, -1 one per core.
    """

    def __init__(self, function: Callable[[_Task], _Result], num_jobs: int) -> None:
        self._function, self._num_jobs = function, num_jobs

    def map(self, tasks: Iterable[_Task]) -> Iterator[_Result]:
        """Results in the order of the tasks."""
        if self._num_jobs == 1:
            return map(self._function, tasks)
        return run_parallel((joblib.delayed(_call_kept)(self._pickled, task) for task in tasks), self._num_jobs)

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self._function)


def _call_kept(pickled: bytes, task: Any) -> Any:
    return _unpickled(pickled)(task)


@lru_cache(maxsize=2)
def _unpickled(pickled: bytes) -> Callable[[Any], Any]:
    function: Callable[[Any], Any] = pickle.loads(pickled)
    return function


class SafeLoky(joblib.parallel.LokyBackend):  # type: ignore[misc]  # joblib has no annotations
    """joblib's processes on this machine, which look for no modules in the current folder while they start."""

    def _prepare_worker_env(self, n_jobs: int) -> dict[str, str]:
        return {**super()._prepare_worker_env(n_jobs), **safe_path()}


def _safe(backend: Any) -> Any:
    """The backend in use, or ours with the same settings in place of joblib's own."""
    if type(backend) is not joblib.parallel.LokyBackend:
        return backend
    return SafeLoky(
        nesting_level=backend.nesting_level,
        inner_max_num_threads=backend.inner_max_num_threads,
        **backend.backend_kwargs,
    )


def tied(calls: Iterable[Any]) -> Iterator[Any]:
    """joblib's delayed calls; a process of this machine that makes one ends soon after this program, even if killed.

    joblib's own processes would compute on, and wait another five minutes for more.
    """
    return (joblib.delayed(_call)(os.getpid(), *call) for call in calls)


def _call(program: int, function: Callable[..., Any], arguments: Iterable[Any], named: Mapping[str, Any]) -> Any:
    if os.getppid() == program:  # and not in a cluster, or the program itself
        _end_with(program)
    return function(*arguments, **named)


@cache
def _end_with(parent: int) -> None:
    """End this process when its parent has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    Thread(target=watch, name="swiftspec-parent", daemon=True).start()


@contextmanager
def quiet_start() -> Iterator[None]:
    """Processes that joblib starts within this context print nothing when the planner is interrupted.

    A terminal sends Ctrl-C to them, too, and each would print a traceback of what the planner handles itself.
    """
    if sys.platform == "win32":  # it cannot hold signals
        yield
        return
    _start_trackers()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _start_trackers() -> None:
    """Start, once, the processes that remove what killed programs leave in /dev/shm.

    Python's own start of them would let held signals through. joblib's tracker writes to the null device: when a
    planner is interrupted, joblib reports the same missing file twice, and the second report prints a traceback.
    """
    with safe_multiprocessing():
        resource_tracker.ensure_running()
        _start_quiet_tracker()


def _start_quiet_tracker() -> None:
    with suppress(OSError):  # where stderr has been closed there is nothing to keep quiet
        stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        try:
            loky_tracker.ensure_running()
        finally:
            os.dup2(stderr, 2)
            os.close(nowhere)
            os.close(stderr)


def end_workers() -> None:
    """End joblib's processes on this machine at once, even mid-simulation; the program's exit would wait for them."""
    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


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
