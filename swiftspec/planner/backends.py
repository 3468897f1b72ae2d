"""Where simulations run: this machine's cores, or an existing Dask or Ray cluster, through joblib."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import joblib

from swiftspec.registry.names import unknown

__all__ = ["BACKENDS", "check_backend", "parallel_backend"]


def _connect_to_dask() -> None:
    # The client registers itself as the one that joblib's backend uses; its address comes from Dask's configuration.
    import_module("distributed").Client()


def _connect_to_ray() -> None:
    import_module("ray.util.joblib").register_ray()


# Name -> the package it needs, and what to do before joblib knows it.
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
    if find_spec(package) is None:
        raise ValueError(f"{field} is {name!r}, which needs the package {package}; it is not installed")


@contextmanager
def parallel_backend(name: str | None) -> Iterator[None]:
    """Within it, joblib's work goes to this backend; None leaves joblib as it is configured.

    Raises
    ------
    ValueError
        As `check_backend`.
    """
    if name is None:
        yield
        return
    check_backend(name)
    _, connect = BACKENDS[name]
    connect()
    with joblib.parallel_config(backend=name):
        yield
