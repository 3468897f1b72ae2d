"""nano-PEARL's tables: one request in the simulator, batches in lock step."""

from statistics import median

import pytest

from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.nano_pearl import (
    FITTED_ON,
    Cell,
    Rounds,
    batch_rows,
    cells,
    predicted_gain,
    window,
    windows,
)
from swiftspec.studies.backtest.speeds import decoding
from swiftspec.studies.backtest.timed import independent

CELLS = list(cells())
SMALLER = ("llama-3.2-1b", "qwen2.5-1.5b", "qwen3-0.6b")


def error(cell: Cell) -> float:
    return cell.autoregressive * predicted_gain(cell) / cell.pearl - 1


def of(table: str, num_requests: int) -> list[Cell]:
    return [
        cell for cell in CELLS if (cell.table, cell.num_requests) == (table, num_requests) and cell.dataset != FITTED_ON
    ]


def test_both_tables_are_whole() -> None:
    assert len(CELLS) == 2 * 6 * 4 * 4
    assert len(windows()) == 6


def test_single_requests_on_h200s_are_predicted_within_10_percent() -> None:
    """Every second pair on two data sets; `swiftspec backtest` has them all."""
    errors = [abs(error(cell)) for cell in of("H200", 1) if cell.draft in SMALLER and cell.dataset != "CNNDM"]
    assert len(errors) == 6
    assert median(errors) < 0.04
    assert max(errors) < 0.1


def test_small_batches_are_predicted_and_the_gain_falls_with_the_batch_as_published() -> None:
    errors = [abs(error(cell)) for cell in of("H200", 8)]
    assert median(errors) < 0.04
    assert max(errors) < 0.15
    for one, eight, most in zip(of("H200", 1), of("H200", 8), of("H200", 32), strict=True):
        gains = [cell.pearl / cell.autoregressive for cell in (one, eight, most)]
        assert gains == sorted(gains, reverse=True)
        assert predicted_gain(eight) > predicted_gain(most)


def test_large_batches_of_the_largest_targets_are_predicted_too_fast() -> None:
    """What is missed: each row beyond the first costs nano-PEARL far more than the tables' kernels."""
    errors = [error(cell) for cell in of("H200", 32) if cell.target.startswith("llama")]
    assert min(errors) > 0.05
    assert all(abs(error(cell)) < 0.1 for cell in of("H200", 32) if cell.target.startswith("qwen3"))


def test_rows_leave_out_what_was_fitted() -> None:
    rows = batch_rows()
    assert len(rows) == 2 * 6 * 3 * 3
    assert not [row for row in rows if FITTED_ON in row.name]


@pytest.mark.parametrize("dataset", ["GSM8K", "HumanEval"])
def test_the_closed_form_has_the_simulators_tokens_per_round_and_nearly_the_published_ones(dataset: str) -> None:
    (cell,) = (one for one in of("H200", 1) if one.dataset == dataset and one.draft == "llama-3.2-1b")
    count = window(cell.target, cell.draft)
    policy = make_policy("pearl", num_draft_tokens=count)
    degrees = {Role.TARGET: cell.target_devices, Role.DRAFT: 1}
    simulated = decoding(cell.deployment, independent(cell.acceptance), policy, degrees)
    tokens = Rounds.of(cell.acceptance, count).tokens
    assert simulated.figures.tokens_per_round == pytest.approx(tokens, rel=0.08)
    assert tokens == pytest.approx(cell.tokens_per_round, rel=0.1)


def test_tables_have_cells_whose_rounds_are_shorter_than_an_autoregressive_step() -> None:
    """No lock step allows that: the autoregressive speeds of one pair on L40Ss are of other conditions."""
    impossible = {
        (cell.table, cell.target, cell.draft)
        for cell in CELLS
        if cell.tokens_per_round / cell.pearl < 0.95 / cell.autoregressive
    }
    assert impossible == {("L40S", "qwen3-32b", "qwen3-0.6b")}
