"""The fit of what a round adds: what was planted is found, and a source that is missed widens the spread."""

import pytest

from tools.fit_rounds import BEFORE, Gain, _by_engine, _spread

PLANTED = 1.2e-3


def gains(source: str, *, count: int, engine: str = "vllm", misses: float = 0.0) -> list[Gain]:
    """Gains that are too high by what PLANTED seconds of a round of 5 ms take, and by a factor exp(misses)."""
    slope = -1 / 5e-3
    error = -slope * PLANTED + misses
    return [Gain(engine=engine, source=source, model="m", error=error, slope=slope)] * count


def test_a_planted_time_is_found_whatever_the_number_of_rows() -> None:
    found = _by_engine([*gains("a", count=200), *gains("b", count=20)])
    assert found["vllm"] == pytest.approx(PLANTED, rel=0.1)
    assert found["llamacpp"] == pytest.approx(found["vllm"], rel=0.01)  # the mean of engines that were measured


def test_a_single_row_moves_little_from_what_is_known_before() -> None:
    assert _by_engine(gains("a", count=1))["vllm"] == pytest.approx(BEFORE, abs=0.5 * (PLANTED - BEFORE))


def test_a_source_that_the_others_miss_widens_the_spread() -> None:
    alike = [*gains("a", count=20), *gains("b", count=20), *gains("c", count=20)]
    odd = [*gains("a", count=20), *gains("b", count=20), *gains("c", count=20, misses=0.3)]
    assert _spread(alike) < 0.1 < _spread(odd)
