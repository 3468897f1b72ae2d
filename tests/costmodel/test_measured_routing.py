"""Measured routing: counts of experts in windows, and the correlation of routing whose correlation is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.costmodel.measured_routing import MeasuredRouting, mean_touched, measured_routing
from swiftspec.costmodel.routing import independent
from swiftspec.timing.latency import Provenance
from tests.cli.samples import trace

NUM_EXPERTS, NUM_ACTIVE = 16, 2


def drawn(num_tokens: int, *, seed: int, num_layers: int = 4, num_experts: int = NUM_EXPERTS) -> np.ndarray:
    """Independent routing of a sequence."""
    rng = np.random.default_rng(seed)
    return rng.random((num_tokens, num_layers, num_experts)).argsort(-1)[..., :NUM_ACTIVE].astype(np.uint8)


def measured(*routes: np.ndarray) -> MeasuredRouting:
    return MeasuredRouting(
        num_experts=NUM_EXPERTS,
        num_active=NUM_ACTIVE,
        touched=mean_touched(routes, num_experts=NUM_EXPERTS),
        source="test",
    )


def brute_force(routes: list[np.ndarray], size: int) -> float:
    return float(
        np.mean(
            [
                len(np.unique(sequence[first : first + size, layer]))
                for sequence in routes
                for first in range(len(sequence) - size + 1)
                for layer in range(sequence.shape[1])
            ]
        )
    )


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any),
    num_experts=st.integers(2, 7),
    longest=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_counts_are_those_of_brute_force(lengths: list[int], num_experts: int, longest: int, seed: int) -> None:
    routes = [
        drawn(length, seed=seed + number, num_layers=2, num_experts=num_experts)
        for number, length in enumerate(lengths)
    ]
    touched = mean_touched(routes, num_experts=num_experts, longest=longest)
    assert len(touched) == min(longest, max(lengths))
    assert touched == pytest.approx([brute_force(routes, size) for size in range(1, len(touched) + 1)])


def test_independent_routing_has_a_correlation_of_one() -> None:
    found = measured(drawn(400, seed=0), drawn(300, seed=1))
    assert found.correlation == pytest.approx(1.0, abs=0.02)
    assert found.largest_miss < 0.2
    assert found.touched[3] == pytest.approx(independent(4, num_experts=NUM_EXPERTS, num_active=NUM_ACTIVE), abs=0.2)


def test_identical_routing_has_none() -> None:
    found = measured(np.repeat(drawn(1, seed=0), 50, axis=0))
    assert found.touched == (NUM_ACTIVE,) * 16
    assert (found.correlation, found.largest_miss) == (0.0, 0.0)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_layers_that_are_independent_count_by_their_share(share: float) -> None:
    """Of 40 layers a share routes independently, the others always to the same experts: exactly that correlation."""
    num_layers = 40
    routes = drawn(300, seed=3, num_layers=num_layers)
    same = round((1 - share) * num_layers)
    routes[:, :same] = routes[0, :same]
    found = measured(routes)
    assert found.correlation == pytest.approx(share, abs=0.02)
    assert found.largest_miss < 0.2


def test_a_traces_routing_is_measured_and_says_where() -> None:
    sparse = trace(ranks=(0,) * 40)
    routes = drawn(40, seed=5)
    sparse = replace(sparse, num_experts=NUM_EXPERTS, prompts=(replace(sparse.prompts[0], routes=routes),))
    found = measured_routing(sparse, file="trace.npz")
    assert found is not None
    assert (found.num_experts, found.num_active) == (NUM_EXPERTS, NUM_ACTIVE)
    routing = found.routing()
    assert routing.provenance is Provenance.MEASURED
    assert routing.correlation == found.correlation
    assert routing.source == "measured over 40 output tokens (prompts: 1) of synthetic in float32 in trace.npz"


def test_traces_that_cannot_tell() -> None:
    dense, single = trace(), trace(ranks=(0,))
    assert measured_routing(dense, file="") is None
    of_one_token = replace(single.prompts[0], routes=drawn(1, seed=0))
    assert measured_routing(replace(single, num_experts=NUM_EXPERTS, prompts=(of_one_token,)), file="") is None
    all_active = replace(dense.prompts[0], routes=np.tile(np.arange(NUM_ACTIVE, dtype=np.uint8), (4, 1, 1)))
    assert measured_routing(replace(dense, num_experts=NUM_ACTIVE, prompts=(all_active,)), file="") is None
