import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.artifacts.distributions import MOST_TOKENS, Distribution, Lengths
from swiftspec.workload.generate import draw_lengths
from tests.artifacts.test_distributions import lengths


def draw(text: str, num_requests: int = 20_000, seed: int = 0) -> np.ndarray:
    parsed = Lengths.parse(text, field="prompt_tokens")
    return draw_lengths(parsed, num_requests, np.random.default_rng(seed), field="prompt_tokens")


@given(lengths, st.integers(0, 2**32))
def test_every_length_is_a_possible_one(made: Lengths, seed: int) -> None:
    found = draw_lengths(made, 20, np.random.default_rng(seed), field="prompt_tokens")
    assert found.dtype.kind == "i"
    assert found.min() >= (made.least or made.tokens or 1)
    assert found.max() <= (made.most or made.tokens or MOST_TOKENS)


def test_fixed_lengths_are_fixed() -> None:
    assert draw("fixed:96", 3).tolist() == [96, 96, 96]


def test_uniform_lengths_include_both_bounds() -> None:
    found = draw("uniform:3:7")
    assert np.unique(found).tolist() == [3, 4, 5, 6, 7]
    assert np.bincount(found)[3:] / len(found) == pytest.approx(np.full(5, 0.2), abs=0.02)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("mean", "cv"), [(200, 0.5), (1000, 1.0), (50, 0.1)])
def test_lognormal_lengths_have_their_mean_and_variation(mean: float, cv: float, seed: int) -> None:
    found = draw(f"lognormal:{mean}:{cv}", seed=seed)
    assert found.mean() == pytest.approx(mean, rel=4 * cv / len(found) ** 0.5)
    assert found.std() / found.mean() == pytest.approx(cv, rel=0.1)
    assert np.median(found) == pytest.approx(mean / (1 + cv**2) ** 0.5, rel=0.05)


def test_lengths_of_a_file_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match=r"^output_tokens is replay; expected fixed:TOKENS"):
        draw_lengths(Lengths(distribution=Distribution.REPLAY), 3, np.random.default_rng(0), field="output_tokens")
