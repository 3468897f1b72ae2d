from pathlib import Path

import pytest
import torch

from swiftspec.kernels.linear import load_table, save_table
from swiftspec.kernels.products import MAX_SPLITS, NUM_PARTIALS, TileConfig, default_config
from swiftspec.kernels.tuning import SHAPES, Timing, candidates, choose, tune

FAST = TileConfig(block_n=64, block_k=128)
SLOW = TileConfig(block_n=32, block_k=128)


def _timing(config: TileConfig | None, time_us: float, *, m: int = 8, correct: bool = True) -> Timing:
    return Timing(m=m, n=4096, k=4096, config=config, time_us=time_us, correct=correct)


def test_fastest_tiling_is_chosen() -> None:
    (choice,) = choose([_timing(None, 12.0), _timing(SLOW, 11.0), _timing(FAST, 10.0)])
    assert (choice.config, choice.kernel_us, choice.cublas_us) == (FAST, 10.0, 12.0)


@pytest.mark.parametrize(("time_us", "expected"), [(9.5, FAST), (9.6, None), (20.0, None)])
def test_less_than_a_twentieth_is_not_worth_it(time_us: float, expected: TileConfig | None) -> None:
    (choice,) = choose([_timing(FAST, time_us), _timing(None, 10.0)])
    assert choice.config == expected
    assert choice.kernel_us == time_us


def test_wrong_answer_has_no_say() -> None:
    (choice,) = choose([_timing(None, 12.0), _timing(FAST, 1.0, correct=False), _timing(SLOW, 11.0)])
    assert choice.config == SLOW
    (choice,) = choose([_timing(None, 12.0), _timing(FAST, 1.0, correct=False)])
    assert (choice.config, choice.kernel_us) == (None, None)


def test_shapes_are_chosen_for_one_by_one() -> None:
    timings = [_timing(None, 10.0, m=1), _timing(None, 10.0), _timing(FAST, 5.0), _timing(FAST, 15.0, m=1)]
    assert [(choice.m, choice.config) for choice in choose(timings)] == [(1, None), (8, FAST)]


@pytest.mark.parametrize("timings", [[], [_timing(None, 1.0), _timing(None, 2.0)]], ids=["none", "two"])
def test_shape_without_one_time_of_cublas_is_named(timings: list[Timing]) -> None:
    with pytest.raises(ValueError, match=f"m=8, n=4096, k=4096 has {len(timings)} times of torch.mm; expected one"):
        choose([*timings, _timing(FAST, 1.0)])


@pytest.mark.parametrize(("m", "n", "k"), SHAPES, ids=str)
def test_candidates_are_few_and_possible(m: int, n: int, k: int) -> None:
    found = candidates(m, n, k)
    assert 10 <= len(found) <= 20
    assert len(set(found)) == len(found)
    assert found[0] == default_config(m, n, k)
    for config in found:
        assert config.split_k <= MAX_SPLITS
        assert config.split_k * m * n <= NUM_PARTIALS
        assert config.block_k * config.split_k <= k
        # Stages of x and the weight, and the first tile: what a multiprocessor has, 227 KiB.
        assert 2 * (max(m, 16) + config.block_n) * config.block_k * (config.num_stages + 1) <= 227 * 1024


@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a GPU")
def test_measures_a_shape_and_saves_it(tmp_path: Path) -> None:
    lines: list[str] = []
    (choice,) = tune([(8, 1024, 1024)], progress=lines.append)
    save_table([choice], tmp_path / "gpu.json")
    assert load_table(tmp_path / "gpu.json") == {(1024, 1024): (choice,)}
    assert choice.cublas_us > 0
    assert choice.kernel_us is not None
    assert not any("wrong answer" in line for line in lines)
