"""Tokens per round of chains and trees: conversions by hand, and trees of heads whose chains are known, too."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from swiftspec.acceptance import lengths
from swiftspec.acceptance.lengths import Drafted
from swiftspec.acceptance.records import AcceptanceRecord, published_records

# Tokens per round on MT-Bench of a chain and of trees (steps, top-k, rows) by the same head: a Qwen3-30B-A3B's in
# sgl-project/SpecForge issue 339; a Llama-3.1-8B's chain in vllm-project/vllm issue 20780, and its trees in
# sgl-project/sglang pull request 4247, with the top-k and rows of pull request 4716.
HEADS = (
    ((3, 1.86), {(3, 3, 8): 2.20, (3, 3, 4): 1.99, (7, 4, 16): 2.52, (6, 4, 12): 2.42, (8, 8, 60): 3.2}),
    ((7, 3.54), {(8, 8, 64): 5.39, (5, 8, 64): 4.68}),
)


def errors() -> np.ndarray:
    """Of the trees' tokens per round, predicted from the chain's, relative."""
    found = []
    for (steps, tokens), trees in HEADS:
        rate = Drafted(steps=steps).rate(tokens)
        for (depth, top_k, rows), measured in trees.items():
            drafted = Drafted(steps=depth, top_k=top_k, rows=rows)
            found.append((1 + sum(drafted.survival([rate] * depth))) / measured - 1)
    return np.array(found)


def test_a_chain_has_a_geometric_sum() -> None:
    assert Drafted(steps=2).rate(1.75) == pytest.approx(0.5)
    assert Drafted(steps=3).survival((0.8, 0.5, 0.75)) == pytest.approx((0.8, 0.4, 0.3))


@pytest.mark.parametrize("drafted", [Drafted(steps=4), Drafted(steps=4, top_k=3, rows=12)])
def test_none_and_all_are_rates_too(drafted: Drafted) -> None:
    assert drafted.rate(1.0) == 0
    assert drafted.rate(5.0) == 1
    assert drafted.survival([0.0] * 4) == pytest.approx((0, 0, 0, 0), abs=1e-9)
    assert drafted.survival([1.0] * 4) == pytest.approx((1, 1, 1, 1))


def test_a_tree_of_as_many_rows_as_a_chain_is_no_shorter() -> None:
    for rate in (0.2, 0.5, 0.8):
        chain, tree = (sum(Drafted(steps=4, top_k=k, rows=5).survival([rate] * 4)) for k in (1, 4))
        assert tree >= chain - 1e-9


def test_a_tree_of_two_levels_by_hand() -> None:
    # First candidates are right half of the time, second ones a share `_RUNNER_UP` of the other half.
    second = 0.5 * lengths._RUNNER_UP
    found = Drafted(steps=2, top_k=2, rows=4).survival([0.5, 0.5])
    assert found == pytest.approx((0.5 + second, 0.25))


def test_trees_follow_from_the_chains_of_their_heads() -> None:
    assert np.abs(errors()).max() < 0.1
    assert np.sqrt(np.mean(errors() ** 2)) < 0.05


def test_the_second_candidate_is_as_good_as_these_trees_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def missed(runner_up: float) -> float:
        monkeypatch.setattr(lengths, "_RUNNER_UP", runner_up)
        return float(np.mean(errors() ** 2))

    fitted = lengths._RUNNER_UP
    assert minimize_scalar(missed, bounds=(0.1, 0.9), method="bounded").x == pytest.approx(fitted, abs=0.03)


def test_a_record_of_a_tree_tells_of_its_chains() -> None:
    def of_head(record: AcceptanceRecord) -> bool:
        return record.drafter == "zhuyksir/EAGLE3-Qwen3-30B-A3B-DenseHead"

    chain, *trees = (one for one in published_records() if of_head(one))
    assert len(trees) == 5
    for tree in trees:
        assert tree.length(3) == pytest.approx(chain.length(3), rel=0.13)
