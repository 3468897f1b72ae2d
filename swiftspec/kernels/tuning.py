"""Measures which tiling of the skinny GEMM suits a shape, and whether any is worth it: the tables of `linear`.

    python -m swiftspec.kernels.tuning

writes this GPU's table for the shapes of Llama 8B and of a 70B's quarter. A time is the median over replays of a CUDA
graph that goes through copies of the weight which together exceed the L2 several times, as a model's layers do: a
weight that is read twice in a row would come from the cache, and the fastest tiling of a cache is not the memory's.
Both sides are timed without programmatic dependent launch: what that gains is on top.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from swiftspec.kernels.linear import Choice, save_table, table_path
from swiftspec.kernels.products import MAX_SPLITS, NUM_PARTIALS, TileConfig, Workspace, default_config
from swiftspec.kernels.skinny_gemm import skinny_gemm, skinny_gemm_reference

__all__ = ["MIN_GAIN", "SHAPES", "Timing", "candidates", "choose", "tune"]

MIN_GAIN = 0.05  # below that a choice is noise, and cuBLAS's is somebody else's to keep right
SHAPES = tuple(
    (m, n, k)
    for n, k in ((6144, 4096), (4096, 4096), (4096, 14336), (2560, 8192), (8192, 2048), (8192, 7168))
    for m in (1, 2, 4, 8, 16, 32, 64)
)
_REPLAYS = 25
_TOLERANCE = 1e-2  # of the largest output: some units in the last place of bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One candidate's time, in microseconds. `config` None is torch.mm; what is not correct has no say."""

    m: int
    n: int
    k: int
    config: TileConfig | None
    time_us: float
    correct: bool = True


def candidates(m: int, n: int, k: int) -> tuple[TileConfig, ...]:
    """Up to 20 tilings: narrower and wider tiles, splits around those that fill the GPU, either operand first."""
    default = default_config(m, n, k)
    found = [default]
    for block_n, factor, swap_ab in itertools.product((32, 64, 128), (0.5, 1, 2), (False, True)):
        split_k = int(default.split_k * factor * block_n / 64)
        fits = 1 <= split_k <= MAX_SPLITS and split_k * m * triton.cdiv(n, block_n) * block_n <= NUM_PARTIALS
        # A warpgroup's product has 64 rows of its first operand; a program has some tiles to stream.
        if not fits or (swap_ab and block_n < 64) or k < 2 * default.block_k * split_k:
            continue
        num_warps = 8 if block_n == 128 else 4
        tiles = [(default.block_k, 4)]
        if factor == 1 and block_n <= 64:
            tiles.append((2 * default.block_k, 3))
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


def choose(timings: Iterable[Timing], *, min_gain: float = MIN_GAIN) -> tuple[Choice, ...]:
    """Per shape, in order of appearance: the fastest correct tiling if it takes that much less time than torch.mm.

    Raises
    ------
    ValueError
        For a shape without exactly one time of torch.mm.
    """
    shapes: dict[tuple[int, int, int], list[Timing]] = {}
    for timing in timings:
        shapes.setdefault((timing.m, timing.n, timing.k), []).append(timing)
    return tuple(_choose(shape, of_shape, min_gain) for shape, of_shape in shapes.items())


def _choose(shape: tuple[int, int, int], timings: Sequence[Timing], min_gain: float) -> Choice:
    m, n, k = shape
    vendors = [timing for timing in timings if timing.config is None]
    if len(vendors) != 1:
        raise ValueError(f"shape m={m}, n={n}, k={k} has {len(vendors)} times of torch.mm; expected one")
    cublas_us = vendors[0].time_us
    kernels = [timing for timing in timings if timing.config is not None and timing.correct]
    best = min(kernels, key=lambda timing: timing.time_us, default=None)
    worth_it = best is not None and best.time_us <= (1 - min_gain) * cublas_us
    return Choice(
        m=m,
        n=n,
        k=k,
        config=best.config if best is not None and worth_it else None,
        kernel_us=None if best is None else best.time_us,
        cublas_us=cublas_us,
    )


def tune(
    shapes: Iterable[tuple[int, int, int]],
    *,
    device: torch.device | str = "cuda",
    progress: Callable[[str], object] = lambda _line: None,
) -> tuple[Choice, ...]:
    """Measure (m, n, k) shapes in bf16 on an otherwise idle GPU, and choose.

    A candidate is checked before it is timed; one that needs more than the GPU has is left out. `progress` is told
    one line per shape, and one per candidate that computes something else.
    """
    choices = []
    for m, n, k in shapes:
        timings = _time_shape(m, n, k, torch.device(device))
        for timing in timings:
            if not timing.correct:
                progress(f"m={m} n={n} k={k}: wrong answer of {timing.config}")
        (choice,) = choose(timings)
        progress(f"m={m} n={n} k={k}: {choice.kernel_us} us, cuBLAS {choice.cublas_us} us, {choice.config}")
        choices.append(choice)
    return tuple(choices)


def _time_shape(m: int, n: int, k: int, device: torch.device) -> list[Timing]:
    generator = torch.Generator(device).manual_seed(m)
    x = torch.randn(m, k, generator=generator, device=device).bfloat16()
    weight = (torch.randn(n, k, generator=generator, device=device) / k**0.5).bfloat16()
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    copies = [weight.clone() for _ in range(max(4, triton.cdiv(4 * l2_bytes, weight.nbytes)))]
    out = torch.empty(m, n, dtype=x.dtype, device=device)
    workspace = Workspace.allocate(device)
    expected = skinny_gemm_reference(x, weight)

    def time_us(product: Callable[[Tensor], object]) -> float:
        return _median_us(lambda: [product(copy) for copy in copies]) / len(copies)

    timings = [Timing(m=m, n=n, k=k, config=None, time_us=time_us(lambda copy: torch.mm(x, copy.T, out=out)))]
    for config in candidates(m, n, k):

        def kernel(copy: Tensor, config: TileConfig = config) -> Tensor:
            return skinny_gemm(x, copy, config=config, out=out, workspace=workspace)

        try:
            correct = _agree(kernel(weight), expected)
        except triton.runtime.errors.OutOfResources:
            continue
        duration_us = time_us(kernel) if correct else math.inf
        timings.append(Timing(m=m, n=n, k=k, config=config, time_us=duration_us, correct=correct))
    return timings


def _agree(out: Tensor, expected: Tensor) -> bool:
    error = (out.float() - expected.float()).abs().max()
    return bool(error <= _TOLERANCE * expected.float().abs().max())  # false for NaN too


def _median_us(work: Callable[[], object]) -> float:
    """Of a CUDA graph's replays."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times_us: list[float] = []
    for _ in range(_REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(1e3 * start.elapsed_time(end))
    return statistics.median(times_us)


def main() -> None:
    """Tune this GPU for `SHAPES` and write its table, after every shape: what was measured stays."""
    path = table_path(torch.cuda.get_device_name())
    choices: list[Choice] = []
    for shape in SHAPES:
        choices += tune([shape], progress=lambda line: sys.stdout.write(line + "\n"))
        save_table(choices, path)
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
