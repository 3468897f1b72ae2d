"""Speeds of heads and parallel drafts."""

from statistics import median

from swiftspec.backtest.head_speeds import head_speed_rows

ROWS, CONSTANTS = head_speed_rows()


def errors(word: str) -> list[float]:
    return [row.error for row in ROWS if word in row.name]


def test_speeds_that_were_solved_for_are_no_rows() -> None:
    assert len(CONSTANTS) == 2
    solved = [row for row in ROWS if "pard" in row.name and "A100" in row.name and "HumanEval" not in row.name]
    assert not solved
    assert all(1 < constant.value < 9 for constant in CONSTANTS)


def test_parallel_drafts_block_drafters_and_the_tree_are_within_12_percent() -> None:
    others = [row.error for row in ROWS if "chain of" not in row.name]
    assert len(others) == 7
    assert median(map(abs, others)) < 0.08
    assert max(map(abs, others)) < 0.12


def test_chains_of_a_head_are_all_too_fast_by_the_same_part() -> None:
    """Hence the order of lengths is right: what vLLM adds to a round and to a draft forward is not in any table."""
    chains = errors("chain of")
    assert len(chains) == 6
    assert min(chains) > 0.1
    assert max(chains) < 0.25
    assert max(chains) - min(chains) < 0.08


def test_the_best_chain_of_a_head_is_predicted() -> None:
    chains = [row for row in ROWS if "chain of" in row.name]
    best = max(chains, key=lambda row: row.predicted)
    assert best.published > 0.98 * max(row.published for row in chains)
