import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.artifacts.distributions import LEAST_RATE, MOST_RATE, Arrivals, Process
from swiftspec.workload.generate import arrival_times

open_processes = st.one_of(
    st.builds(Arrivals, process=st.sampled_from(["poisson", "constant"]), rate=st.floats(LEAST_RATE, MOST_RATE)),
    st.builds(Arrivals, process=st.just("gamma"), rate=st.floats(LEAST_RATE, MOST_RATE), shape=st.floats(1e-3, 1e6)),
)


def times(text: str, num_requests: int, seed: int = 0) -> np.ndarray:
    arrivals = Arrivals.parse(text, field="arrivals")
    return arrival_times(arrivals, num_requests, np.random.default_rng(seed))


@given(open_processes, st.integers(1, 300), st.integers(0, 2**32))
def test_the_last_arrival_is_at_requests_over_rate(arrivals: Arrivals, num_requests: int, seed: int) -> None:
    found = arrival_times(arrivals, num_requests, np.random.default_rng(seed))
    assert arrivals.rate is not None
    assert found.shape == (num_requests,)
    assert found[-1] == num_requests / arrivals.rate
    assert (np.diff(found, prepend=0.0) >= 0).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("process", "cv"),
    [("poisson:2", 1.0), ("gamma:2:0.25", 2.0), ("gamma:2:1", 1.0), ("gamma:2:4", 0.5), ("gamma:2:100", 0.1)],
)
def test_gaps_vary_as_their_law_says(process: str, cv: float, seed: int) -> None:
    gaps_s = np.diff(times(process, 20_000, seed), prepend=0.0)
    assert gaps_s.mean() == pytest.approx(0.5, rel=1e-12)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.06)  # four standard errors at CV 2


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(times("poisson:1", 50_000), prepend=0.0)
    for at_s in (0.1, 0.5, 1.0, 2.0, 4.0):
        assert (gaps_s > at_s).mean() == pytest.approx(np.exp(-at_s), abs=0.01)


def test_gamma_of_shape_one_is_poisson_in_law() -> None:
    gaps_s = np.diff(times("gamma:1:1", 50_000), prepend=0.0)
    assert (gaps_s > 1.0).mean() == pytest.approx(np.exp(-1.0), abs=0.01)


def test_constant_gaps_are_all_the_same() -> None:
    assert times("constant:4", 5).tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.25])


def test_a_closed_loop_has_no_times() -> None:
    assert times("closed:3", 5).tolist() == [0.0] * 5


def test_a_seed_has_one_pattern_at_every_rate() -> None:
    assert times("poisson:8", 50, seed=3) * 4 == pytest.approx(times("poisson:2", 50, seed=3))
    assert not np.allclose(times("poisson:2", 50, seed=3), times("poisson:2", 50, seed=4))


def test_a_replay_has_no_distribution() -> None:
    with pytest.raises(ValueError, match=r"^arrivals is replay; expected poisson:RATE"):
        arrival_times(Arrivals(process=Process.REPLAY), 3, np.random.default_rng(0))
