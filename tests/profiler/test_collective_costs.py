import dataclasses
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace

import pytest

from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.profiler import collective_costs
from swiftspec.profiler.collective_costs import CollectiveCosts, collective_samples
from tests.engine.conftest import two_cores

SPEC = dataclasses.replace(ModelSpec.from_directory(model_directory("demo/draft")), num_layers=2)


@two_cores
def test_two_ranks_cost_each_other_something_at_every_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_costs, "SAMPLES", 4)
    samples = collective_samples(SPEC, "float32", devices=(0, 1), ranks=2, rows=(1, 8))
    assert set(samples) == {1, 8}
    for of_rows in samples.values():
        assert [len(seconds) for seconds in of_rows] == [*[collective_costs.SAMPLES] * 2, 1]
        assert all(second > 0 for seconds in of_rows for second in seconds)
    costs = CollectiveCosts.of([samples])
    assert 0 < costs.gather.at(8).median_s < 1


@two_cores
def test_a_rank_that_fails_is_told_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = import_module("torch.multiprocessing.spawn")  # its package has a function of that name
    here = SimpleNamespace(NamedTemporaryFile=partial(NamedTemporaryFile, dir=tmp_path))
    monkeypatch.setattr(spawn, "tempfile", here)
    impossible = dataclasses.replace(SPEC, hidden_size=-1)
    with pytest.raises(RuntimeError, match="collectives among 2 ranks failed"):
        collective_samples(impossible, "float32", devices=(0, 1), ranks=2, rows=(1,))
    assert list(tmp_path.iterdir()) == []
