import pytest

from tools.closed_forms import best_chain, chain_tokens, serial_speedup


@pytest.mark.parametrize(
    ("acceptance", "length", "tokens"), [(0.0, 4, 1.0), (0.5, 1, 1.5), (0.8, 4, 3.3616), (1.0, 4, 5.0)]
)
def test_chain_tokens_are_a_geometric_sum(acceptance: float, length: int, tokens: float) -> None:
    assert chain_tokens(acceptance, length) == pytest.approx(tokens)
    assert chain_tokens(acceptance, length) == pytest.approx(sum(acceptance**depth for depth in range(length + 1)))


@pytest.mark.parametrize(
    ("acceptance", "cost_ratio", "length", "speedup"),
    [(0.6, 3, 1, 1.200), (0.8, 3, 3, 1.476), (0.9, 5, 7, 2.373), (0.6, 20, 4, 1.921), (0.95, 20, 21, 6.600)],
)
def test_best_chain_and_its_speedup(acceptance: float, cost_ratio: float, length: int, speedup: float) -> None:
    assert best_chain(acceptance, cost_ratio=cost_ratio) == length
    assert serial_speedup(acceptance, length, cost_ratio=cost_ratio) == pytest.approx(speedup, abs=5e-4)
