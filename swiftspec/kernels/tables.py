"""Tables of the fastest tilings, one for each kind of GPU, since they differ from one kind to another.

`tables/<gpu>.json` is written by `tools.tuning`. R rows, N outputs, K inputs.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from swiftspec.files.reading import read_json
from swiftspec.kernels.products import TileConfig

_TABLES = Path(__file__).with_name("tables")


class Product(NamedTuple):
    """A kind of product: its size, how weights are stored, and whether it is gated.

    weights: `bf16`, which fp16 counts as, `fp8` or `int4`. A gated product is the first half of an MLP.
    """

    n: int
    k: int
    weights: str = "bf16"
    gated: bool = False

    def __str__(self) -> str:
        return f"{self.weights}{' gated' * self.gated} n={self.n} k={self.k}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The measurement of one product of m rows.

    config      the fastest tiling; None if it hardly gains on the rival
    kernel_us   microseconds of the fastest tiling with a correct result; None if no tiling's is
    rival_us    microseconds of torch.mm for ungated bf16, and of `default_config` otherwise
    """

    n: int
    k: int
    m: int
    weights: str = "bf16"
    gated: bool = False
    config: TileConfig | None
    kernel_us: float | None
    rival_us: float

    @property
    def product(self) -> Product:
        return Product(self.n, self.k, self.weights, self.gated)


Table = Mapping[Product, tuple[Choice, ...]]
"""Choices for each product, in ascending order of rows."""


def table_path(device_name: str) -> Path:
    """The file of a kind of GPU: tables/nvidia-h200.json for an NVIDIA H200."""
    return _TABLES / f"{re.sub(r'[^a-z0-9]+', '-', device_name.lower()).strip('-')}.json"


def load_table(path: Path) -> Table:
    """Read a table that `tools.tuning` wrote; an empty one if there is no such file. It comes with the package."""
    table: dict[Product, list[Choice]] = {}
    for row in read_json(path) if path.exists() else ():
        choice = Choice(**row | {"config": row["config"] and TileConfig(**row["config"])})
        table.setdefault(choice.product, []).append(choice)
    return {product: tuple(sorted(choices, key=lambda choice: choice.m)) for product, choices in table.items()}


def pick(table: Table, product: Product, *, num_rows: int) -> TileConfig | None:
    """The tiling chosen for this number of rows, or else for the next larger one; None if there is none."""
    return next((choice.config for choice in table.get(product, ()) if choice.m >= num_rows), None)


def tuned_config(x_RK: torch.Tensor, product: Product) -> TileConfig | None:
    """`pick` from the table of x's GPU; None for fp32 activations, which were not measured."""
    if x_RK.dtype == torch.float32:
        return None
    return pick(_table(x_RK.device), product, num_rows=x_RK.shape[0])


@functools.lru_cache
def _table(device: torch.device) -> Table:
    if device.type != "cuda":
        return {}
    return load_table(table_path(torch.cuda.get_device_name(device)))
