"""Figures of a plan: options explored, and the parts of its forwards."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from swiftspec.artifacts.plan import Explored, Plan
from swiftspec.reports.explored import fastest_first, groups
from swiftspec.reports.figures.style import COLOURS, VERMILION, new_figure
from swiftspec.timing.latency import Latency


def heat_map(plan: Plan) -> Figure:
    """tokens/s of every policy at its best on every split that was simulated; the choice is framed."""
    named = [(title, cells) for title, cells in zip(("one group", "target+draft"), groups(plan), strict=True) if cells]
    ratios = [len({cell.split for cell in cells}) + 2 for _, cells in named]
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, len(named), width_ratios=ratios, squeeze=False)[0]
    fastest = max(cell.tokens_per_s for cell in plan.explored)
    for axes, (title, cells) in zip(panels, named, strict=True):
        _heat(axes, cells, chosen=(plan.chosen.policy, plan.chosen.split), fastest=fastest)
        axes.set(xlabel=f"devices, {title}")
    figure.suptitle(f"tokens/s of every policy at its best on every split, {plan.num_devices} x {plan.device}")
    return figure


def _heat(axes: Axes, cells: Sequence[Explored], *, chosen: tuple[str, str], fastest: float) -> None:
    policies = fastest_first(cells)
    splits = sorted({(cell.num_devices, cell.split) for cell in cells})
    speeds = np.full((len(policies), len(splits)), np.nan)
    for cell in cells:
        row, column = policies.index(cell.policy), splits.index((cell.num_devices, cell.split))
        speeds[row, column] = cell.tokens_per_s
        ink = "white" if cell.tokens_per_s > 0.6 * fastest else "black"
        weight = "bold" if (cell.policy, cell.split) == chosen else "normal"
        text = f"{'~' * cell.estimated}{cell.tokens_per_s:.0f}"
        axes.text(column, row, text, ha="center", va="center", color=ink, fontweight=weight, fontsize="small")
        if weight == "bold":
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, color=VERMILION, linewidth=2.5))
    axes.imshow(speeds, cmap="Blues", vmin=0, vmax=fastest, aspect="auto")
    axes.set_yticks(range(len(policies)), policies)
    axes.set_xticks(range(len(splits)), [split for _, split in splits])


def forward_parts(forwards: Mapping[str, Latency]) -> Figure:
    """Time of composed forwards by part: a bar per forward, a colour per part, labelled with its provenance.

    ValueError for a forward that is not composed.
    """
    if whole := [name for name, latency in forwards.items() if not latency.parts]:
        raise ValueError(f"forwards has {whole[0]!r}, which is not composed of parts")
    figure, axes = new_figure(10, 0.5 * len(forwards) + 1.9)
    names = list(dict.fromkeys((part.name, part.provenance) for latency in forwards.values() for part in latency.parts))
    starts = np.zeros(len(forwards))
    for number, (name, provenance) in enumerate(names):
        seconds = [sum(part.seconds for part in each.parts if part.name == name) for each in forwards.values()]
        widths = np.array(seconds) * 1e3
        colour, faint = COLOURS[number % len(COLOURS)], number >= len(COLOURS)
        label = f"{name} ({provenance})"
        axes.barh(list(forwards), widths, left=starts, color=colour, alpha=0.5 if faint else 1.0, label=label)
        starts += widths
    axes.set(xlabel="time of a forward (ms)")
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure
