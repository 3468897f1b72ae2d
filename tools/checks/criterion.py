"""What a check demands of a figure. Standard library only: a GPU's run is judged even where packages are missing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Bound = Literal["at most", "at least", "below"]
Figure = float | Iterable[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """A measured figure beside its limit. Its text is the line that is printed, its fields are the JSON.

    Parameters
    ----------
    name : str
        What the figure is.
    found : float or None
        In `unit`; None if nothing was measured, or no number.
    bound : "at most", "at least" or "below"
    limit : float
        In `unit`.
    unit : str
        Empty for ratios and counts.
    where : str
        The measurement that decides, if there are several.
    held : bool or None
        None if nothing was measured.
    """

    name: str
    found: float | None
    bound: Bound
    limit: float
    unit: str
    where: str
    held: bool | None

    def __str__(self) -> str:
        verdict = {True: "held", False: "missed", None: "unknown"}[self.held]
        found = "-" if self.found is None else self._in_unit(self.found)
        where = f" ({self.where})" if self.where else ""
        return f"{verdict}: {self.name}: {found}{where}, {self.bound} {self._in_unit(self.limit)}"

    def _in_unit(self, value: float) -> str:
        return f"{value:.4g} {self.unit}".rstrip()


def at_most(name: str, found: Figure, limit: float, unit: str = "") -> Criterion:
    """Criterion of a figure, or of the worst of several named ones. A NaN never holds."""
    return _judged(name, found, "at most", limit, unit)


def at_least(name: str, found: Figure, limit: float, unit: str = "") -> Criterion:
    """As `at_most`."""
    return _judged(name, found, "at least", limit, unit)


def below(name: str, found: Figure, limit: float, unit: str = "") -> Criterion:
    """As `at_most`; the limit itself does not hold."""
    return _judged(name, found, "below", limit, unit)


def _judged(name: str, found: Figure, bound: Bound, limit: float, unit: str) -> Criterion:
    figures = list(found) if isinstance(found, Iterable) else [("", found)]
    where, value = _worst(figures, bound) if figures else ("", math.nan)
    held = {"at most": value <= limit, "at least": value >= limit, "below": value < limit}[bound]
    return Criterion(
        name=name,
        found=None if math.isnan(value) else float(value),
        bound=bound,
        limit=limit,
        unit=unit,
        where=where,
        held=bool(held) if figures else None,
    )


def _worst(figures: list[tuple[str, float]], bound: Bound) -> tuple[str, float]:
    for where, value in figures:
        if math.isnan(value):
            return where, value
    return (min if bound == "at least" else max)(figures, key=lambda figure: figure[1])
