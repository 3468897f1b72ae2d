import math
from pathlib import Path

import pytest
import torch

from swiftspec.kernels.products import MAX_SPLITS, NUM_PARTIALS, TileConfig, default_config
from swiftspec.kernels.tables import Product, load_table
from swiftspec.profiler.op_timer import OpTimer
from tools.tuning import BITS, ROWS, Trial, candidates, choose, products_of, save_table, tune

FAST = TileConfig(block_n=64, block_k=128)
SLOW = TileConfig(block_n=32, block_k=128)
SQUARE = Product(4096, 4096)
INFLATION = "layers=32,hidden=4096,heads=64,intermediate=14336"


def _trial(config: TileConfig | None, time_us: float, *, m: int = 8, correct: bool = True) -> Trial:
    return Trial(m=m, product=SQUARE, config=config, time_us=time_us, correct=correct)


def test_fastest_tiling_is_chosen() -> None:
    (choice,) = choose([_trial(None, 12.0), _trial(SLOW, 11.0), _trial(FAST, 10.0)])
    assert (choice.config, choice.kernel_us, choice.rival_us) == (FAST, 10.0, 12.0)


@pytest.mark.parametrize(("time_us", "expected"), [(9.5, FAST), (9.6, None), (20.0, None)])
def test_less_than_a_twentieth_is_not_worth_it(time_us: float, expected: TileConfig | None) -> None:
    (choice,) = choose([_trial(FAST, time_us), _trial(None, 10.0)])
    assert choice.config == expected
    assert choice.kernel_us == time_us


def test_wrong_answer_has_no_say() -> None:
    (choice,) = choose([_trial(None, 12.0), _trial(FAST, 1.0, correct=False), _trial(SLOW, 11.0)])
    assert choice.config == SLOW
    (choice,) = choose([_trial(None, 12.0), _trial(FAST, 1.0, correct=False)])
    assert (choice.config, choice.kernel_us) == (None, None)


def test_shapes_are_chosen_for_one_by_one() -> None:
    trials = [_trial(None, 10.0, m=1), _trial(None, 10.0), _trial(FAST, 5.0), _trial(FAST, 15.0, m=1)]
    assert [(choice.m, choice.config) for choice in choose(trials)] == [(1, None), (8, FAST)]


@pytest.mark.parametrize("trials", [[], [_trial(None, 1.0), _trial(None, 2.0)]], ids=["none", "two"])
def test_a_product_without_one_time_of_its_rival_is_named(trials: list[Trial]) -> None:
    with pytest.raises(ValueError, match=f"bf16 n=4096 k=4096 m=8 has {len(trials)} times of its rival; expected one"):
        choose([*trials, _trial(FAST, 1.0)])


def test_what_is_tuned_is_what_runs() -> None:
    products = products_of(INFLATION)
    assert len(set(products)) == len(products)
    # qkv, output, gate and up, down and head of a 32B model; of the inflated pair, what no other model has.
    for n, k, gated in ((10240, 5120, False), (5120, 8192, False), (51200, 5120, True), (5120, 25600, False)):
        for weights in BITS:
            assert Product(n, k, weights, gated) in products
    assert {Product(151936, 5120), Product(4096, 4096), Product(8192, 4096)} <= set(products)


@pytest.mark.parametrize("weights", BITS)
def test_candidates_are_few_and_possible(weights: str) -> None:
    for product in (product for product in products_of(INFLATION) if product.weights == weights):
        for m in ROWS:
            found = candidates(m, product)
            assert 4 <= len(found) <= 20, (product, m)
            assert len(set(found)) == len(found)
            assert found[0] == default_config(m, product.n, product.k, bits=BITS[weights])
            for config in found:
                assert config.split_k <= MAX_SPLITS
                assert config.split_k == 1 or config.split_k * m * product.n <= NUM_PARTIALS
                assert config.block_k * config.split_k <= product.k
                if weights == "int4":
                    assert config.block_k == 256
                if weights == "bf16":
                    # Stages of x and the weight, and the first tile: what a multiprocessor has, 227 KiB.
                    inputs = (max(m, 16) + config.block_n) * config.block_k
                    assert 2 * inputs * (config.num_stages + 1) <= 227 * 1024


@pytest.mark.parametrize("product", [Product(64, 512), Product(64, 512, "fp8", gated=True), Product(64, 512, "int4")])
def test_measures_a_product_and_saves_it(product: Product, tmp_path: Path) -> None:
    """On a CPU the kernels run in the interpreter: every step but the speed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines: list[str] = []
    watch = OpTimer(device, repeats=5, warm_up_s=0.0, budget_s=0.0, cached_bytes=1024)
    (choice,) = tune([(4, product)], watch=watch, progress=lines.append)
    save_table([choice], tmp_path / "tables" / "gpu.json")
    assert load_table(tmp_path / "tables" / "gpu.json") == {product: (choice,)}
    assert choice.kernel_us is not None
    assert 0 < choice.kernel_us < math.inf
    assert choice.rival_us > 0
    assert not any("wrong answer" in line for line in lines)


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpu.json"
    save_table([], path)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    monkeypatch.setattr("os.replace", fails)
    with pytest.raises((ValueError, OSError), match="No space left"):
        save_table([], path)
    assert load_table(path) == {}
    assert [file.name for file in tmp_path.iterdir()] == ["gpu.json"]
