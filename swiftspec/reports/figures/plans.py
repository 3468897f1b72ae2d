"""Figures of a plan: options explored, sensitivities, and the parts of its forwards."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from swiftspec.artifacts.plan import Explored, Plan
from swiftspec.reports.explored import fastest_first, groups
from swiftspec.reports.figures.style import BLUE, COLOURS, GREY, VERMILION, new_figure
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


def speed_against_devices(plan: Plan) -> Figure:
    """tokens/s of every explored option over its devices; the line joins the fastest for each number of devices."""
    figure, axes = new_figure()
    devices = [cell.num_devices for cell in plan.explored]
    every = [cell.tokens_per_s for cell in plan.explored]
    axes.plot(devices, every, "o", color=GREY, alpha=0.5, label="a policy at its best on a split")
    fastest = plan.fastest_by_devices
    speeds = [cell.tokens_per_s for cell in fastest.values()]
    axes.plot(list(fastest), speeds, marker="o", color=BLUE, label="the fastest")
    for number, cell in fastest.items():
        label = f"{cell.policy}\n{cell.split}"
        axes.annotate(label, (number, cell.tokens_per_s), (0, 7), textcoords="offset points", ha="center", fontsize=7)
    axes.set(xlabel="devices in use", ylabel="speed (tokens/s)", ylim=(0, 1.15 * max(speeds)))
    axes.margins(x=0.08)
    axes.legend(loc="lower right")
    return figure


def sensitivity(plan: Plan) -> Figure:
    """tokens/s of the choice under other assumptions, compared with those planned."""
    figure, axes = new_figure(7, 0.45 * len(plan.sensitivities) + 1.3)
    planned = plan.chosen.prediction.metrics.figures.tokens_per_s
    numbers = range(len(plan.sensitivities))
    bars = axes.barh(numbers, [case.tokens_per_s for case in plan.sensitivities], color=BLUE, height=0.6)
    gains = [f"{round((case.tokens_per_s / planned - 1) * 100):+d} %" for case in plan.sensitivities]
    axes.bar_label(bars, gains, padding=-45, color="white")
    axes.axvline(planned, color=VERMILION)
    changes = [f"{case.change}{' *' if case.changes_choice else ''}" for case in plan.sensitivities]
    axes.set_yticks(numbers, changes)
    axes.invert_yaxis()
    axes.set(
        xlabel="the choice's speed (tokens/s); * another option would be faster then",
        title=f"{plan.chosen.policy} {plan.chosen.split}, planned for {planned:.0f} tokens/s",
    )
    return figure


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
