"""Colours, empty figures, and saving of figures.

The colours are Okabe and Ito's, which colour-blind readers can tell apart.
"""

import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swiftspec.files.writing import write_output

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#999999"
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, GREY)
_DPI = 120


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure, completely or not at all, in the format of the path's suffix: png, svg or pdf."""
    write_output(path, render(figure, path.suffix.removeprefix(".")))


def render(figure: Figure, file_format: str) -> bytes:
    """The bytes of a figure as png, svg or pdf. The same figure is the same bytes, so that a repository can hold it."""
    buffer = io.BytesIO()
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(file_format)
    with rc_context({"svg.hashsalt": "swiftspec"}):
        figure.savefig(buffer, format=file_format, dpi=_DPI, metadata={dated: None} if dated else None)
    return buffer.getvalue()


def new_figure(width: float = 7, height: float = 4.5) -> tuple[Figure, Axes]:
    """An empty figure in the style of the others. width, height: inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes
