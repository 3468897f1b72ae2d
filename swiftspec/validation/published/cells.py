"""Numbers in the cells of a row."""

from collections.abc import Mapping

import numpy as np

__all__ = ["UnpredictedError", "cell_count", "cell_number"]


class UnpredictedError(ValueError):
    """Why a row cannot be predicted, a clause."""


def cell_count(cells: Mapping[str, str], *names: str, default: int | None = None) -> int:
    """A whole number of the first of these columns that has one. UnpredictedError without any and without a default."""
    found = cell_number(cells, *names)
    if found is None:
        if default is None:
            raise UnpredictedError(f"{names[0]} is missing")
        return default
    if found != int(found) or found < 0:
        raise ValueError(f"{names[0]} is {found:g}; expected a whole number")
    return int(found)


def cell_number(cells: Mapping[str, str], *names: str, default: float | None = None) -> float | None:
    """A finite number of the first of these columns that has one. ValueError for a cell that is none."""
    for name in names:
        text = cells.get(name, "").strip()
        if text:
            try:
                value = float(text)
            except ValueError:
                raise ValueError(f"{name} is {text!r}; expected a number") from None
            if not np.isfinite(value):
                raise ValueError(f"{name} is {text}; expected a finite number")
            return value
    return default
