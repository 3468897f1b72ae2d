"""Kernels compiled before they are needed, in several processes, into Triton's cache: no GPU is needed for that.

    TRITON_CACHE_DIR=cache python -m swiftspec.profiler.baking --processes 2 --inflate layers=32,hidden=4096

The cache's keys are contents: of Triton, of the kernel's source, of signature and constants. So a cache that was filled
here serves a GPU elsewhere, with the same versions of Triton and of the kernels, once `kernel_cache` has moved it.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from swiftspec.documents import ModelRef
from swiftspec.engine.checkpoint import weight_shapes
from swiftspec.engine.ops import triton_ops
from swiftspec.engine.staging import BUCKETS
from swiftspec.engine.static import StaticDecoder
from swiftspec.engine.weights import FORMATS, build_weight
from swiftspec.kernels.compiling import compiling
from swiftspec.kernels.products import TileConfig, Workspace
from swiftspec.kernels.tables import Product
from swiftspec.profiler.ranks import forkserver
from swiftspec.profiler.steps import computed_spec
from swiftspec.profiler.tuning import ROWS, candidates, kernel_of, products_of
from swiftspec.registry import known_model
from swiftspec.specs import ModelSpec

__all__ = ["Decoding", "Launch", "Tests", "compile_all", "decodings", "tuning_launches"]

_META = torch.device("meta")  # shapes and dtypes are all that a compiler asks for
_POSITIONS = 4608


@dataclass(frozen=True, slots=True)
class Launch:
    """A product of m rows with a certain tiling, as tuning times it."""

    m: int
    product: Product
    config: TileConfig

    def compile(self) -> None:
        n, k, weights, gated = self.product
        weight = build_weight(_empty((n, k)), FORMATS["bfloat16" if weights == "bf16" else weights])
        out = _empty((self.m, n // (1 + gated)))
        workspace = Workspace.allocate(_META)
        kernel_of(self.product)(_empty((self.m, k)), weight, config=self.config, out=out, workspace=workspace)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The forwards of a model at one number of rows, as the engine records them."""

    spec: ModelSpec
    dtype: str
    num_rows: int
    pdl: bool

    def compile(self) -> None:
        spec = replace(self.spec, num_layers=2)  # all layers launch the same
        ops = triton_ops(pdl=self.pdl)
        weights = _EmptyWeights(spec, FORMATS[self.dtype].dtype)
        decoder = StaticDecoder(spec, weights, weight_format=FORMATS[self.dtype], device=_META, ops=ops)
        cache = decoder.new_cache(_POSITIONS)
        rows = range(self.num_rows)
        logits = decoder.forward([0] * len(rows), rows, [0] * len(rows), cache)
        ops.top_candidates(logits, 8)


@dataclass(frozen=True, slots=True)
class Tests:
    """What a file of tests launches. They fail, since nothing is computed."""

    path: str

    def compile(self) -> None:
        run = "import sys, pytest; from swiftspec.kernels.compiling import compiling\n"
        run += "with compiling(inspect=False): pytest.main(sys.argv[1:])"
        options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-k", "not compiles_for and not hopper"]
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        subprocess.run([sys.executable, "-c", run, self.path, *options], env=environment, check=True, stdout=sys.stderr)


Job = Launch | Decoding | Tests


def tuning_launches(products: Iterable[Product], rows: Sequence[int] = ROWS) -> list[Launch]:
    """Those of every candidate, one for each kernel: what Triton compiles does not depend on N."""
    found: dict[tuple[object, ...], Launch] = {}
    for m in rows:
        for product in products:
            for config in candidates(m, product):
                even = product.k % (config.block_k * config.split_k)
                # Triton pads m to 16, and compiles 1 and multiples of 16 for themselves.
                rows_key = m if m == 1 or m >= 16 else 0
                key = (rows_key, product.weights, product.gated, config, even == 0)
                found.setdefault(key, Launch(m, product, config))
    return list(found.values())


def decodings(inflate: str) -> Iterator[Decoding]:
    """Of a 32B and an 8B model, and of the bundled pair, its target inflated."""
    pair = [ModelRef(model="demo/target", dtype="bfloat16", inflate=inflate), ModelRef(model="demo/draft", dtype="")]
    specs = [*map(computed_spec, pair), known_model("qwen3-32b").spec, known_model("llama-3.1-8b").spec]
    for dtype in ("bfloat16", "fp8", "int4"):
        for spec in specs:
            for num_rows in BUCKETS:
                yield Decoding(spec, dtype, num_rows, pdl=True)
    for spec in specs[2:]:
        yield Decoding(spec, "bfloat16", 8, pdl=False)


def compile_all(jobs: Iterable[Job], *, num_processes: int, deadline_s: float = math.inf) -> int:
    """Compile, and answer how many jobs were done; whoever launches one of them afterwards finds it in the cache.

    Raises
    ------
    TimeoutError
        After `deadline_s` seconds; what is compiled by then stays in the cache.
    """
    with ProcessPoolExecutor(num_processes, mp_context=forkserver(), initializer=_begin) as pool:
        timeout = None if deadline_s == math.inf else deadline_s
        try:
            return sum(pool.map(_compile, jobs, timeout=timeout))
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    torch.set_num_threads(1)


def _compile(job: Job) -> int:
    if isinstance(job, Tests):
        job.compile()
    else:
        with compiling(inspect=False):
            job.compile()
    return 1


class _EmptyWeights(Mapping[str, Tensor]):
    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        self._shapes = weight_shapes(spec)
        self._empty = partial(_empty, dtype=dtype)

    def __getitem__(self, name: str) -> Tensor:
        return self._empty(self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _empty(shape: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device=_META)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the cache that TRITON_CACHE_DIR names with what decoding, tuning and tests launch."""
    parser = argparse.ArgumentParser(prog="python -m swiftspec.profiler.baking", description=main.__doc__)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--inflate", required=True, help="of the bundled target")
    parser.add_argument("--only", default="decoding,tests,tuning", help="kinds, in this order")
    parser.add_argument("--rows", default="8,1,16", help="of tuning")
    parser.add_argument("tests", nargs="*", help="files of tests")
    options = parser.parse_args(arguments)
    rows = [int(count) for count in options.rows.split(",")]
    jobs: dict[str, list[Job]] = {
        "decoding": list(decodings(options.inflate)),
        "tests": [Tests(path) for path in options.tests],
        "tuning": list(tuning_launches(products_of(options.inflate), rows)),
    }
    for kind in options.only.split(","):
        done = compile_all(jobs[kind], num_processes=options.processes)
        sys.stdout.write(f"{kind}: {done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
