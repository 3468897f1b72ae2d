"""x W^T by whatever was measured to be faster on this GPU: cuBLAS (torch.mm), or the skinny GEMM with a certain tiling.

R rows, N outputs, K inputs. `tables/<gpu>.json` has the measurements, one file per kind of GPU, written by `tuning`:
what is right for one is wrong for the next. Without a file, or for a shape that is not in it, it is cuBLAS.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swiftspec.files.reading import read_json, shown
from swiftspec.files.writing import write_output
from swiftspec.kernels.products import DTYPES, MAX_ROWS, TileConfig, Workspace
from swiftspec.kernels.runtime import check_contiguous, check_dtype, check_shape, check_together
from swiftspec.kernels.skinny_gemm import skinny_gemm

__all__ = ["Choice", "Table", "linear", "load_table", "pick", "save_table", "table_path"]

_TABLES = Path(__file__).with_name("tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one shape was measured to want, in 16-bit floats.

    config      the skinny GEMM's; None where cuBLAS is as fast
    kernel_us   microseconds of the fastest tiling that computes the right thing; None if there is none
    cublas_us   microseconds of torch.mm
    """

    n: int
    k: int
    m: int
    config: TileConfig | None
    kernel_us: float | None
    cublas_us: float


Table = Mapping[tuple[int, int], tuple[Choice, ...]]
"""(N, K) to choices, fewest rows first."""


def table_path(device_name: str) -> Path:
    """Where the measurements of a kind of GPU are: tables/nvidia-h200.json."""
    return _TABLES / f"{re.sub(r'[^a-z0-9]+', '-', device_name.lower()).strip('-')}.json"


def load_table(path: Path) -> Table:
    """An empty one if there is no such file.

    Raises
    ------
    ValueError
        For a file that `save_table` would not write, naming file and row.
    """
    if not path.exists():
        return {}
    table: dict[tuple[int, int], list[Choice]] = {}
    rows = read_json(path)
    if not isinstance(rows, list):
        raise ValueError(f"{path}: holds {shown(rows)}; expected a list")
    for index, row in enumerate(rows):
        try:
            choice = _choice(row)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: row {index}: {error}") from error
        table.setdefault((choice.n, choice.k), []).append(choice)
    return {shape: tuple(sorted(choices, key=lambda choice: choice.m)) for shape, choices in table.items()}


def save_table(choices: Iterable[Choice], path: Path) -> None:
    """One row per line, in the order given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(choice)) for choice in choices)
    write_output(path, f"[\n{lines}\n]\n".encode())


def pick(table: Table, *, num_rows: int, n: int, k: int) -> TileConfig | None:
    """The tiling measured for so many rows or the next more; None is cuBLAS."""
    return next((choice.config for choice in table.get((n, k), ()) if choice.m >= num_rows), None)


def linear(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    bias_N: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Workspace | None = None,
    pdl: bool = False,
) -> Tensor:
    """x W^T + bias, (R, N).

    Parameters
    ----------
    x_RK : Tensor
        fp32, fp16 or bf16, contiguous; any number of rows.
    weight_NK : Tensor
        x's dtype, contiguous.
    bias_N : Tensor, optional
        x's dtype.
    out : Tensor, optional
        Answer's buffer, (R, N), of x's dtype.
    workspace : Workspace, optional
        For a split K; otherwise the current stream's.
    pdl : bool
        Programmatic dependent launch; nothing to cuBLAS, which starts when its predecessor has ended.

    Raises
    ------
    ValueError
        For a shape, dtype, device or layout that is not supported.
    """
    check_shape("weight_NK", weight_NK, (None, None))
    n, k = weight_NK.shape
    check_shape("x_RK", x_RK, (None, k), why="K of weight_NK")
    if out is None:
        out = torch.empty(x_RK.shape[0], n, dtype=x_RK.dtype, device=x_RK.device)
    check_shape("out", out, (x_RK.shape[0], n))
    tensors = {"x_RK": x_RK, "weight_NK": weight_NK, "out": out}
    if bias_N is not None:
        check_shape("bias_N", bias_N, (n,), why="N of weight_NK")
        tensors["bias_N"] = bias_N
    check_dtype("x_RK", x_RK, DTYPES)
    for name, tensor in tensors.items():
        check_dtype(name, tensor, (x_RK.dtype,))
    check_together(**tensors)
    check_contiguous(**tensors)

    config = None
    if x_RK.shape[0] <= MAX_ROWS and x_RK.dtype != torch.float32:
        config = pick(_table(x_RK.device), num_rows=x_RK.shape[0], n=n, k=k)
    if config is not None:
        return skinny_gemm(x_RK, weight_NK, config=config, bias_N=bias_N, out=out, workspace=workspace, pdl=pdl)
    if bias_N is not None:
        return torch.addmm(bias_N, x_RK, weight_NK.T, out=out)
    return torch.mm(x_RK, weight_NK.T, out=out)


@functools.lru_cache
def _table(device: torch.device) -> Table:
    if device.type != "cuda":
        return {}
    return load_table(table_path(torch.cuda.get_device_name(device)))


def _choice(row: Any) -> Choice:
    if not isinstance(row, dict):
        raise TypeError(f"expected an object, not {row!r}")
    expected = {field.name for field in fields(Choice)}
    if row.keys() != expected:
        raise ValueError(f"has {', '.join(sorted(row))}; expected {', '.join(sorted(expected))}")
    return Choice(**row | {"config": row["config"] and TileConfig(**row["config"])})
