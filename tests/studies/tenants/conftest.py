from pathlib import Path

import pytest

from tests.studies.tenants.models import base_tensors, factors, fine_tuned, write_adapter, write_model


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two fine-tunes of its last layers of which `b` has the later layer of `a`, and an adapter."""
    folder = tmp_path_factory.mktemp("zoo")
    base = write_model(folder / "base", base_tensors())
    a = fine_tuned(base, folder / "a", layers=(3,))
    fine_tuned(a, folder / "b", layers=(2,), noise=5.0, seed=2)
    write_adapter(folder / "adapter", factors())
    return folder
