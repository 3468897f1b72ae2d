"""Experts of a sparse target: those that its rows chose, as traces keep them, and how many a verification touches."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from swiftspec.files.document import Facts

ROUTES = "routes"  # the array's name in a trace file: [tokens, layers, k]
MOST_EXPERTS = 65536  # more than any layer has


class TouchedPoint(Facts):
    """Experts of a layer that a verification of so many rows touched, in the mean over layers and contexts."""

    rows: int = Field(ge=1)
    experts: float = Field(gt=0)


class ExpertsTouched(Facts):
    """Experts that the measured verifications touched.

    num_experts, num_active: routed experts of each layer, and those of one row. points: by ascending rows.
    """

    num_experts: int = Field(ge=1, le=MOST_EXPERTS)
    num_active: int = Field(ge=1)
    points: tuple[TouchedPoint, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if any(one.rows >= other.rows for one, other in pairwise(self.points)):
            raise ValueError("points is out of order; expected ascending rows")
        for point in self.points:
            if not self.num_active <= point.experts <= self.num_experts:
                raise ValueError(
                    f"points holds {point.experts:g} experts; expected {self.num_active} to {self.num_experts}"
                )
        return self

    def by_rows(self) -> dict[int, float]:
        return {point.rows: point.experts for point in self.points}


def smallest_routes(routes: np.ndarray, *, num_experts: int) -> np.ndarray:
    """The same experts as the smallest unsigned integers that can number so many."""
    return routes.astype(np.min_scalar_type(num_experts - 1))


def route_bytes(*, num_layers: int, num_experts: int, num_active: int) -> int:
    return num_layers * num_active * np.min_scalar_type(num_experts - 1).itemsize


def check_routes(arrays: Mapping[str, np.ndarray], *, rows: int, num_experts: int) -> None:
    """ValueError, naming field and value, unless a file of this many experts has routes for so many output tokens.

    num_experts: 0 if the file does not say, and then there must be none.
    """
    routes = arrays.get(ROUTES)
    if routes is None:
        if num_experts:
            raise ValueError(f"{ROUTES} is missing, but num_experts is {num_experts}")
        return
    if not num_experts:
        raise ValueError(f"num_experts is missing, but there is {ROUTES}")
    if routes.dtype.kind not in "iu":
        raise ValueError(f"{ROUTES} has type {routes.dtype}; expected whole numbers")
    if routes.ndim != 3 or len(routes) != rows or not 1 <= routes.shape[2] <= num_experts or not routes.shape[1]:
        raise ValueError(
            f"{ROUTES} has shape {routes.shape}; expected {rows} tokens, layers, and 1 to {num_experts} experts"
        )
    if routes.size and not 0 <= routes.min() <= routes.max() < num_experts:
        wrong = routes.min() if routes.min() < 0 else routes.max()
        raise ValueError(f"{ROUTES} holds {wrong}; expected experts from 0 to {num_experts - 1}")
    in_order = np.sort(routes, axis=-1)
    if any((one == other).any() for one, other in pairwise(np.moveaxis(in_order, -1, 0))):
        raise ValueError(f"{ROUTES} names an expert twice for one token; expected different ones")
