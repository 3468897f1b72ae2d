"""Experts touched: how many of a sparse target's experts the verifications of a profile needed."""

from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from swiftspec.artifacts.routes import MOST_EXPERTS
from swiftspec.files.document import Facts

__all__ = ["ExpertsTouched", "TouchedPoint"]


class TouchedPoint(Facts):
    """Experts of a layer that a verification of so many rows touched, in the mean over layers and contexts."""

    rows: int = Field(ge=1)
    experts: float = Field(gt=0)


class ExpertsTouched(Facts):
    """Experts that the measured verifications touched.

    Parameters
    ----------
    num_experts, num_active : int
        Routed experts of each layer, and those of one row.
    points : tuple of TouchedPoint
        By ascending rows.
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
        """Experts touched, by rows."""
        return {point.rows: point.experts for point in self.points}
