"""Compilation of kernels ahead of their first launch: into Triton's cache, in several processes, without a GPU.

    TRITON_CACHE_DIR=cache python -m tools.baking --processes 2 --inflate layers=32,hidden=4096

Triton's cache is keyed by contents: Triton's own files, the kernel's source, its signature and its constants. So a
cache filled on one machine works on another with a GPU, if both have the same versions of Triton and of the kernels.
`kernel_cache` moves it there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import ForwardBatch, Rows
from swiftspec.engine.model.gpu.kv_cache import CAPTURE_SIZES
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import triton_ops
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.engine.model.weights.checkpoint import weight_shapes
from swiftspec.files.document import ModelRef
from swiftspec.kernels.products import TileConfig, Workspace
from swiftspec.kernels.quantised_gemm import BLOCK
from swiftspec.kernels.tables import Product
from swiftspec.models import known_model
from swiftspec.models.inflation import inflated_spec
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.profiler.helper_processes import forkserver
from tools.compiling import compiling
from tools.tuning import ROWS, candidates, kernel_of, products_of, weight_of

_META = torch.device("meta")  # tensors without memory: the compiler needs their shapes and dtypes only
_POSITIONS = 4608


@dataclass(frozen=True, slots=True)
class Launch:
    """One product of m rows with one tiling, launched as tuning does."""

    m: int
    product: Product
    config: TileConfig

    def compile(self) -> None:
        n, k, _, gated = self.product
        weight = weight_of(self.product, _empty((n, k)))
        out = _empty((self.m, n // (1 + gated)))
        workspace = Workspace.allocate(_META)
        kernel_of(self.product)(_empty((self.m, k)), weight, config=self.config, out=out, workspace=workspace)


@dataclass(frozen=True, slots=True)
class Decoding:
    """One forward of a model, and the candidates after it, launched as the engine does."""

    spec: ModelSpec
    dtype: str
    num_rows: int
    pdl: bool

    def compile(self) -> None:
        spec = replace(self.spec, num_layers=2)  # every further layer launches the same kernels again
        ops = triton_ops(pdl=self.pdl)
        weights = _EmptyWeights(spec, FORMATS[self.dtype].dtype)
        decoder = GpuDecoder(spec, weights, weight_format=FORMATS[self.dtype], device=_META, ops=ops)
        cache = decoder.new_cache(_POSITIONS)
        rows = tuple(Row(0, row, 0) for row in range(self.num_rows))
        (logits,) = decoder.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, rows),)), (cache,)).logits
        ops.top_candidates(logits, 8)


@dataclass(frozen=True, slots=True)
class Tests:
    """Every launch in a file of tests. The tests fail, since nothing is computed."""

    path: str

    def compile(self) -> None:
        run = "import sys, pytest; from tools.compiling import compiling\n"
        run += "with compiling(inspect=False): pytest.main(sys.argv[1:])"
        options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-k", "not hopper"]
        environment = os.environ | {"TRITON_INTERPRET": "0"}
        subprocess.run([sys.executable, "-c", run, self.path, *options], env=environment, check=True, stdout=sys.stderr)


Job = Launch | Decoding | Tests


def tuning_launches(products: Iterable[Product], rows: Sequence[int] = ROWS) -> list[Launch]:
    """One launch for each kernel among the candidates. A kernel is the same for every N, and for most K and m."""
    found: dict[tuple[object, ...], Launch] = {}
    for m in rows:
        for product in products:
            for config in candidates(m, product):
                # Rows are padded to 16 or more. Triton specialises kernels for sizes that are 1 or a multiple of 16:
                # rows, and blocks of int4. For other weights it matters whether K fills all tiles.
                rows_key = m if m == 1 or m >= 16 else 0
                unit = 16 * BLOCK if product.weights == "int4" else config.block_k * config.split_k
                key = (rows_key, product.weights, product.gated, config, product.k % unit == 0)
                found.setdefault(key, Launch(m, product, config))
    return list(found.values())


def decodings(inflate: str) -> Iterator[Decoding]:
    """Forwards that a run launches: of the bundled pair, its target inflated, a 32B and an 8B model.

    The pair that is not inflated also decodes in fp32, to compare its tokens with the CPU's.
    """
    target, draft = (ModelRef(model=f"demo/{name}", dtype="bfloat16") for name in ("target", "draft"))
    pair = [inflated_spec(target), inflated_spec(draft)]
    large = [known_model("qwen3-32b").spec, known_model("llama-3.1-8b").spec]
    inflated = inflated_spec(target.model_copy(update={"inflate": inflate}))
    for dtype in ("bfloat16", "fp8", "int4", "float32"):
        for spec in pair if dtype == "float32" else (*pair, inflated, *large):
            for num_rows in CAPTURE_SIZES:
                yield Decoding(spec, dtype, num_rows, pdl=True)
    for spec in large:
        yield Decoding(spec, "bfloat16", 8, pdl=False)


def compile_all(jobs: Iterable[Job], *, num_processes: int, deadline_s: float | None = None) -> int:
    """Compile all jobs into the cache, and return how many there were.

    Raises
    ------
    TimeoutError
        After `deadline_s` seconds, once the running jobs are done. Kernels compiled by then stay in the cache.
    """
    with ProcessPoolExecutor(num_processes, mp_context=forkserver(), initializer=_begin) as pool:
        return sum(pool.map(_compile, jobs, timeout=deadline_s))


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
    """Fill the cache that TRITON_CACHE_DIR names with the kernels of decoding, tests and tuning."""
    parser = argparse.ArgumentParser(prog="python -m tools.baking", description=main.__doc__)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--inflate", required=True, help="inflation of the bundled target")
    parser.add_argument("--only", default="decoding,tests,tuning", help="kinds of launches, in this order")
    parser.add_argument("--rows", default="8,1,16", help="row counts of tuning")
    parser.add_argument("tests", nargs="*", help="files of tests whose launches are compiled")
    options = parser.parse_args(arguments)
    rows = [int(count) for count in options.rows.split(",")]
    jobs: dict[str, list[Job]] = {
        "decoding": list(decodings(options.inflate)),
        "tests": [Tests(path) for path in options.tests],
        "tuning": list(tuning_launches(products_of(options.inflate), rows)),
    }
    kinds = options.only.split(",")
    if unknown := set(kinds) - jobs.keys():
        parser.error(f"--only has {', '.join(sorted(unknown))}; expected {', '.join(jobs)}")
    for kind in kinds:
        done = compile_all(jobs[kind], num_processes=options.processes)
        sys.stdout.write(f"{kind}: {done} jobs compiled by Triton {version('triton')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
