"""Tuning: finds the fastest tiling of each product of few rows, for the tables of `kernels.tables`.

Each timing is of a CUDA graph that multiplies by copies of the weight in turn. Together the copies exceed the L2
several times, so that weights come from memory, as in a model. Kernels and their rival (cuBLAS) are both timed without
programmatic dependent launch, which would make the kernels even faster.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from swiftspec.engine.model.gpu.weights import FORMATS, Weight, build_weight
from swiftspec.files.document import ModelRef
from swiftspec.files.writing import write_output
from swiftspec.kernels.products import MAX_SPLITS, NUM_PARTIALS, TileConfig, Workspace, default_config
from swiftspec.kernels.quantised_gemm import quantised_gemm, quantised_gemm_reference
from swiftspec.kernels.skinny_gemm import gate_up, gate_up_reference, skinny_gemm, skinny_gemm_reference
from swiftspec.kernels.tables import Choice, Product
from swiftspec.models.inflation import inflated_spec
from swiftspec.models.published import known_model
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec
from swiftspec.profiler.op_timer import OpTimer

MIN_GAIN = 0.05  # a smaller gain is within the noise of a timing, and no reason to replace cuBLAS
ROWS = (8, 1, 16, 64, 4, 32, 2)  # the most important first, since tuning may run out of time
BITS = {"bf16": 16, "fp8": 8, "int4": 4}
_TOLERANCE = 1e-2  # share of the largest output: a few units in the last place of bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate's time, in microseconds. `config` is None for the rival; a wrong answer is never chosen."""

    m: int
    product: Product
    config: TileConfig | None
    time_us: float
    correct: bool = True


def products_of(inflate: str | None = None) -> tuple[Product, ...]:
    """The products of a 32B and an 8B model, a 70B's quarter, and the bundled target inflated, each once.

    Heads are bf16 in every format.
    """
    specs = [known_model("qwen3-32b").spec, known_model("llama-3.1-8b").spec]
    specs.append(sharded(known_model("llama-3.1-70b").spec, 4))
    if inflate is not None:
        specs.append(inflated_spec(ModelRef(model="demo/target", dtype="bfloat16", inflate=inflate)))
    return tuple(dict.fromkeys(product for weights in BITS for spec in specs for product in _products(spec, weights)))


def _products(spec: ModelSpec, weights: str) -> Iterator[Product]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    yield Product(2 * inner, hidden, weights, gated=True)
    yield Product(hidden, inner, weights)
    yield Product(spec.query_size + 2 * spec.kv_size, hidden, weights)
    yield Product(hidden, spec.query_size, weights)
    yield Product(spec.vocab_size, hidden)


def candidates(m: int, product: Product) -> tuple[TileConfig, ...]:
    """Up to 20 tilings: narrower and wider tiles, splits around those that fill the GPU, either operand first."""
    n, k, is_int4 = product.n, product.k, product.weights == "int4"
    default = default_config(m, n, k, bits=BITS[product.weights])
    found = [default]
    for block_n, factor, swap_ab in itertools.product((32, 64, 128), (0.5, 1, 2), (False, True)):
        split_k = int(default.split_k * factor * block_n / 64)
        num_partials = split_k * m * -(-n // block_n) * block_n if split_k > 1 else 0
        fits = 1 <= split_k <= MAX_SPLITS and num_partials <= NUM_PARTIALS
        # With swap_ab a tile needs the 64 weight rows of a wgmma; and a program should stream two tiles at least.
        if not fits or (swap_ab and block_n < 64) or k < 2 * default.block_k * split_k:
            continue
        num_warps = 8 if block_n == 128 else 4
        tiles = [(default.block_k, default.num_stages)]
        if factor == 1 and block_n <= 64:
            # A tile of int4 is one packed block, never wider: its pipeline is varied instead.
            tiles.append((default.block_k, default.num_stages - 1) if is_int4 else (2 * default.block_k, 3))
        for block_k, num_stages in tiles:
            found.append(
                TileConfig(
                    block_n=block_n,
                    block_k=block_k,
                    split_k=split_k,
                    swap_ab=swap_ab,
                    num_warps=num_warps,
                    num_stages=num_stages,
                )
            )
    return tuple(dict.fromkeys(found))


def choose(trials: Iterable[Trial], *, min_gain: float = MIN_GAIN) -> tuple[Choice, ...]:
    """Choose the fastest correct tiling of each product and m; none if it gains less than `min_gain` on the rival.

    Choices are in the order in which products first appear. min_gain is a share of the rival's time.

    Raises
    ------
    ValueError
        For a product without exactly one time of its rival.
    """
    shapes: dict[tuple[int, Product], list[Trial]] = {}
    for trial in trials:
        shapes.setdefault((trial.m, trial.product), []).append(trial)
    return tuple(_choose(m, product, of_shape, min_gain) for (m, product), of_shape in shapes.items())


def _choose(m: int, product: Product, trials: Sequence[Trial], min_gain: float) -> Choice:
    rivals = [trial for trial in trials if trial.config is None]
    if len(rivals) != 1:
        raise ValueError(f"{product} m={m} has {len(rivals)} times of its rival; expected one")
    rival_us = rivals[0].time_us
    kernels = [trial for trial in trials if trial.config is not None and trial.correct]
    best = min(kernels, key=lambda trial: trial.time_us, default=None)
    worth_it = best is not None and best.time_us <= (1 - min_gain) * rival_us
    return Choice(
        m=m,
        **product._asdict(),
        config=best.config if best is not None and worth_it else None,
        kernel_us=None if best is None else best.time_us,
        rival_us=rival_us,
    )


def save_table(choices: Iterable[Choice], path: Path) -> None:
    """Write a table, a row per line, completely or not at all: every product on this GPU would fail on half a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = "[\n" + ",\n".join(json.dumps(asdict(choice)) for choice in choices) + "\n]\n"
    write_output(path, table.encode())


def tune(
    products: Iterable[tuple[int, Product]],
    *,
    watch: OpTimer,
    progress: Callable[[str], object] = lambda _line: None,
) -> Iterator[Choice]:
    """Measure products of m rows on an otherwise idle device, and yield each choice as it is made.

    A candidate is checked before it is timed; one that needs more shared memory or registers than the GPU has is left
    out. `progress` is called with one line for each product, and one for each candidate whose answer is wrong.
    """
    for m, product in products:
        trials = list(_time(m, product, watch))
        for trial in trials:
            if not trial.correct:
                progress(f"{product} m={m}: wrong answer of {trial.config}")
        (choice,) = choose(trials)
        progress(f"{product} m={m}: {choice.kernel_us} us, rival {choice.rival_us} us, {choice.config}")
        yield choice


def kernel_of(product: Product) -> Callable[..., Tensor]:
    """The function that computes a product, of x, a weight, `config`, `out`, `workspace` and `pdl`."""
    if product.weights != "bf16":
        return partial(quantised_gemm, gated=product.gated)
    return gate_up if product.gated else skinny_gemm


def weight_of(product: Product, numbers_NK: Tensor) -> Weight:
    """A product's weight from its numbers in bf16: quantised, unless the product's weights are bf16."""
    return build_weight(numbers_NK, FORMATS["bfloat16" if product.weights == "bf16" else product.weights])


def _time(m: int, product: Product, watch: OpTimer) -> Iterator[Trial]:
    generator = torch.Generator(watch.device).manual_seed(m)
    x = torch.randn(m, product.k, generator=generator, device=watch.device).bfloat16()
    numbers = torch.randn(product.n, product.k, generator=generator, device=watch.device) / math.sqrt(product.k)
    weight: Any = weight_of(product, numbers.bfloat16())
    del numbers  # in fp32, twice as large as the weight
    copies = [_copied(weight) for _ in range(watch.copies(product.n * product.k * BITS[product.weights] // 8))]
    out = torch.empty(m, product.n // (1 + product.gated), dtype=x.dtype, device=watch.device)
    shared: Mapping[str, Any] = {"out": out, "workspace": Workspace.allocate(watch.device)}
    expected = _reference(product)(x, weight)
    kernel = kernel_of(product)

    def time_us(call: Callable[[Any], object]) -> float:
        return 1e6 * watch.graphed(call, [(copy,) for copy in copies], in_a_row=1).median_s

    def run(config: TileConfig, copy: Any) -> Tensor:
        return kernel(x, copy, config=config, **shared)

    def cublas(copy: Any) -> Tensor:
        return torch.mm(x, copy.T, out=out)

    is_plain = product.weights == "bf16" and not product.gated
    rival = cublas if is_plain else partial(run, default_config(m, product.n, product.k, bits=BITS[product.weights]))
    yield Trial(m=m, product=product, config=None, time_us=time_us(rival))
    for config in candidates(m, product):
        try:
            correct = _agree(run(config, weight), expected)
        except OutOfResources:
            continue
        duration_us = time_us(partial(run, config)) if correct else math.inf
        yield Trial(m=m, product=product, config=config, time_us=duration_us, correct=correct)


def _copied(weight: Any) -> Any:
    if isinstance(weight, Tensor):
        return weight.clone()
    return type(weight)(*(getattr(weight, name).clone() for name in weight.__dataclass_fields__))


def _reference(product: Product) -> Callable[..., Tensor]:
    if product.weights != "bf16":
        return partial(quantised_gemm_reference, gated=product.gated)
    return gate_up_reference if product.gated else skinny_gemm_reference


def _agree(out: Tensor, expected: Tensor) -> bool:
    error = (out.float() - expected.float()).abs().max()
    return bool(error <= _TOLERANCE * expected.float().abs().max())  # false for NaN too
