"""Routes in a trace file: kept as they are, in few bytes, and checked when they are read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftspec.artifacts.routes import route_bytes, smallest_routes
from swiftspec.artifacts.trace import AcceptanceTrace, TracedPrompt
from tests.artifacts.test_trace import TRACE, about

NUM_EXPERTS, NUM_LAYERS, NUM_ACTIVE = 5, 3, 2
Arrays = dict[str, Any]


def with_routes(prompt: TracedPrompt) -> TracedPrompt:
    rng = np.random.default_rng(7)
    drawn = rng.random((len(prompt.target_tokens), NUM_LAYERS, NUM_EXPERTS)).argsort(-1)[..., :NUM_ACTIVE]
    return replace(prompt, routes=smallest_routes(drawn, num_experts=NUM_EXPERTS))


SPARSE = replace(TRACE, num_experts=NUM_EXPERTS, prompts=tuple(map(with_routes, TRACE.prompts)))


def test_routes_load_as_they_were(tmp_path: Path) -> None:
    SPARSE.save(tmp_path / "trace.npz")
    loaded = AcceptanceTrace.load(tmp_path / "trace.npz")
    assert loaded.num_experts == NUM_EXPERTS
    for found, saved in zip(loaded.prompts, SPARSE.prompts, strict=True):
        assert found.routes is not None
        assert found.routes.dtype == np.uint8
        np.testing.assert_array_equal(found.routes, saved.routes)


def test_a_trace_without_routes_is_the_same_file_as_ever(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz") as archive:
        assert "routes" not in archive.files
        assert "num_experts" not in str(archive["about"])
    assert AcceptanceTrace.load(tmp_path / "trace.npz").prompts[0].routes is None


@pytest.mark.parametrize(("num_experts", "dtype"), [(8, "uint8"), (256, "uint8"), (257, "uint16")])
def test_routes_are_the_smallest_integers(num_experts: int, dtype: str) -> None:
    routes = smallest_routes(np.full((2, 3, 1), num_experts - 1), num_experts=num_experts)
    assert routes.dtype == dtype
    assert routes.max() == num_experts - 1
    assert routes[0].nbytes == route_bytes(num_layers=3, num_experts=num_experts, num_active=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("routes"), "routes is missing, but num_experts is 5"),
        (lambda a: about(a, num_experts=0), "num_experts is missing, but there is routes"),
        (lambda a: about(a, num_experts=-1), "num_experts is -1; "),
        (lambda a: a.update(routes=a["routes"] * 0.5), "routes has type float64; expected whole numbers"),
        (lambda a: a.update(routes=a["routes"][1:]), r"routes has shape \(7, 3, 2\); expected 8 tokens, layers"),
        (lambda a: a.update(routes=a["routes"][:, 0]), r"routes has shape \(8, 2\); expected 8 tokens, layers"),
        (lambda a: a.update(routes=a["routes"][:, :0]), r"routes has shape \(8, 0, 2\); expected 8 tokens, layers"),
        (lambda a: a.update(routes=a["routes"][..., :0]), r"routes has shape \(8, 3, 0\); .* and 1 to 5 experts"),
        (lambda a: a["routes"].__setitem__((3, 1, 0), 9), "routes holds 9; expected experts from 0 to 4"),
        (
            lambda a: a["routes"].__setitem__((3, 1), 4),
            "routes names an expert twice for one token; expected different ones",
        ),
    ],
)
def test_wrong_routes_are_named_with_the_file(tmp_path: Path, change: Callable[[Arrays], object], message: str) -> None:
    path = tmp_path / "trace.npz"
    SPARSE.save(path)
    with np.load(path) as archive:
        arrays: Arrays = {name: archive[name] for name in archive.files}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=f"^{path}: {message}") as caught:
        AcceptanceTrace.load(path)
    assert "\n" not in str(caught.value)
