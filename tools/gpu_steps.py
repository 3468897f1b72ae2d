"""Measuring steps of `scripts/gpu_runs.sh`. Each appends its records to a file, one JSON line as soon as it is known.

python -m tools.gpu_steps kernels --device cuda --out records.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Everything that any step of a run imports, including steps that are separate programs.
_PACKAGES = (
    *("torch", "triton", "numpy", "scipy", "pydantic", "zmq", "simpy", "typer", "rich", "joblib", "safetensors"),
    *("tokenizers", "transformers", "pytest", "xdist", "hypothesis"),
)
_MODULES = (
    *(f"swiftspec.cli.{verb}" for verb in ("app", "profile", "trace", "plan", "validate", "run")),
    *("swiftspec.engine.process.worker_main", "tools.sharing", "tools.tuning", "tools.baking"),
)

_COMPILING_S = 60.0  # of the tuning step, before it measures
_TUNING_S = 0.05  # of one candidate: a table has thousands

Record = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_steps", description=main.__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--out", type=Path, required=True, help="file that records are appended to")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--inflate", help="inflation of the bundled target: layers=32,hidden=4096,...")
    parser.add_argument("--models", default="32B", help="models whose forwards are timed: 32B, 8B")
    parser.add_argument("--dtypes", default="bfloat16", help="dtypes of these forwards")
    parser.add_argument("--products", default="tuned", help="their matrix products: torch, default, tuned")
    parser.add_argument("--folder", type=Path, help="folder for other files than records: traces, tables")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few samples")
    options = parser.parse_args(arguments)
    with options.out.open("a", encoding="utf-8") as out:
        for record in STEPS[options.step](options):
            out.write(json.dumps({"step": options.step, **record}) + "\n")
            out.flush()
    return 0


def _packages(options: argparse.Namespace) -> Iterator[Record]:
    """Record the machine, then import everything that later steps need.

    ImportError naming everything that cannot be imported at once, since the next machine will lack it, too.
    """
    from tools.environment import environment_record

    cache = os.environ.get("TRITON_CACHE_DIR")
    commit = os.environ.get("SWIFTSPEC_COMMIT", "unknown commit")
    yield environment_record(options.device, commit=commit, triton_cache=Path(cache) if cache else None)
    _import_all(_PACKAGES)
    _import_all(_MODULES)
    if options.device == "cuda":
        import torch

        torch.zeros(1, device="cuda")


def _import_all(names: Iterable[str]) -> None:
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, AttributeError) as error:  # AttributeError: of a package that is too old
            failed.append(f"{name} ({error})")
    if failed:
        raise ImportError(f"cannot be imported: {', '.join(failed)}")


def _watch(options: argparse.Namespace, **settings: float) -> Any:
    from swiftspec.profiler.op_timer import OpTimer

    brief: dict[str, Any] = {"repeats": 5, "warm_up_s": 0.0, "budget_s": 0.0, "in_a_row": 1, "cached_bytes": 1 << 12}
    return OpTimer(options.device, **(brief if options.quick else settings))


def _limits(options: argparse.Namespace) -> Iterable[Record]:
    from tools.baselines import limit_records

    return limit_records(_watch(options))


def _kernels(options: argparse.Namespace) -> Iterable[Record]:
    from tools.baselines import kernel_records

    return kernel_records(_watch(options), quick=options.quick)


def _attention(options: argparse.Namespace) -> Iterable[Record]:
    from tools.baselines import attention_records

    return attention_records(_watch(options, warm_up_s=_TUNING_S / 5, budget_s=_TUNING_S), quick=options.quick)


def _forward(options: argparse.Namespace) -> Iterator[Record]:
    from tools.forwards import forward_record, shape_of

    lists = (getattr(options, name).split(",") for name in ("dtypes", "models", "products"))
    for dtype, model, products in itertools.product(*lists):
        if products == "torch" and dtype in ("fp8", "int4"):
            continue  # torch has no such products
        for pdl in (True, False) if products == "tuned" and not options.quick else (True,):
            trace = options.folder and options.folder / f"forward-{model}-{dtype}-{products}.json.gz"
            yield forward_record(
                _watch(options),
                model=model,
                spec=shape_of(model, quick=options.quick),
                dtype=dtype,
                context=32 if options.quick else 500,
                products=products,
                pdl=pdl,
                trace=trace if pdl else None,
            )


def _decoder(options: argparse.Namespace) -> Iterable[Record]:
    from swiftspec.engine.model.gpu.ops import triton_ops
    from tools.agreement import decoder_records

    if options.device == "cpu":  # kernels are interpreted, and Triton's interpreter multiplies bf16 wrongly
        ops = triton_ops(pdl=False)
        return decoder_records("cpu", model="demo/draft", dtypes=["float32"], rows=(3,), ops=ops)
    if options.quick:
        return decoder_records("cuda", model="demo/target", dtypes=["bfloat16", "fp8", "int4"], rows=(8,))
    dtypes = ("float32", "bfloat16", "fp8", "int4")
    return decoder_records(options.device, model="demo/target", dtypes=dtypes, rows=(1, 8, 32))


def _greedy(options: argparse.Namespace) -> Iterable[Record]:
    from tools.agreement import greedy_records

    dtypes = ("float32",) if options.quick else ("float32", "bfloat16")
    num_prompts, max_new_tokens = (1, 8) if options.quick else (8, 64)
    return greedy_records(options.device, dtypes=dtypes, num_prompts=num_prompts, max_new_tokens=max_new_tokens)


def _tune(options: argparse.Namespace) -> Iterator[Record]:
    """Compile all candidates in parallel, then measure; the table is written anew after each product."""
    from swiftspec.kernels.tables import Product, table_path
    from swiftspec.machine import device_name
    from tools.baking import compile_all, tuning_launches
    from tools.tuning import ROWS, products_of, save_table, tune

    rows: Sequence[int] = ROWS[-1:] if options.quick else ROWS
    quick = (Product(32, 256, "int4", gated=True),)
    products = quick if options.quick else products_of(options.inflate)
    if options.device == "cuda":
        import torch

        # Candidates of other rows, and those not compiled by then, are compiled one by one when they are timed.
        with suppress(TimeoutError):
            launches = tuning_launches(products, rows[:3])
            compile_all(launches, num_processes=len(os.sched_getaffinity(0)), deadline_s=_COMPILING_S)
        path = table_path(torch.cuda.get_device_name())
        paths = [path, options.folder / path.name]
    else:  # interpreted kernels: no table for the engine to find
        paths = [options.folder / table_path(device_name()).name]
    watch = _watch(options, warm_up_s=_TUNING_S / 5, budget_s=_TUNING_S)
    choices = []
    wanted = ((m, product) for m in rows for product in products)
    for choice in tune(wanted, watch=watch, progress=print):
        choices.append(choice)
        for path in paths:
            save_table(choices, path)
        yield {"kind": "tuned", "shape": f"{choice.product} m={choice.m}", "choice": asdict(choice)}


def _ops(options: argparse.Namespace) -> Iterator[Record]:
    from swiftspec.files.document import ModelRef, Origin
    from swiftspec.models.inflation import inflated_spec
    from swiftspec.profiler.op_benchmark import CONTEXTS, ROWS, BenchmarkGrid, measure_ops, op_tables

    models = [ModelRef(model="demo/target", dtype="bfloat16", inflate=options.inflate)]
    models.append(ModelRef(model="demo/draft", dtype="bfloat16"))
    grid = BenchmarkGrid(rows=(1, 8), contexts=(16,)) if options.quick else BenchmarkGrid(rows=ROWS, contexts=CONTEXTS)
    rows = []
    for row in measure_ops(
        [(inflated_spec(reference), reference.dtype) for reference in models],
        watch=_watch(options),
        grid=grid,
        num_devices=1,
        progress=lambda *_: None,
    ):
        rows.append(row)
        yield {"kind": "operation", "shape": f"{row.op} {row.shape}", "dtype": row.dtype, **asdict(row.timing)}
    op_tables(rows, device=options.device, origin=Origin.here()).save(options.folder / "ops.npz")


def _sharing(options: argparse.Namespace) -> Iterable[Record]:
    from swiftspec.files.document import ModelRef
    from tools.sharing import sharing_records

    dtype = "bfloat16" if options.device == "cuda" else "float32"
    target = ModelRef(model="demo/target", dtype=dtype, inflate=options.inflate)
    draft = ModelRef(model="demo/draft", dtype=dtype)
    return sharing_records(options.device, target=target, draft=draft, max_new_tokens=8 if options.quick else 64)


STEPS: Mapping[str, Callable[[argparse.Namespace], Iterable[Record]]] = {
    "packages": _packages,
    "limits": _limits,
    "decoder": _decoder,
    "greedy": _greedy,
    "forward": _forward,
    "tune": _tune,
    "attention": _attention,
    "kernels": _kernels,
    "ops": _ops,
    "sharing": _sharing,
}


if __name__ == "__main__":
    sys.exit(main())
