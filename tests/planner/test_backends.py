from importlib.util import find_spec

import joblib
import pytest

from swiftspec.planner.backends import parallel_backend


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


@pytest.mark.parametrize(("name", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_that_is_not_installed_says_what_it_needs(name: str, package: str) -> None:
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    message = f"backend is '{name}', which needs the package {package}; it is not installed"
    with pytest.raises(ValueError, match=message), parallel_backend(name):
        pass
