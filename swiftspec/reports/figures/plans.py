"""Figures of plans: options explored, and predictions against measured or published results."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from swiftspec.artifacts.metrics import Figures
from swiftspec.artifacts.plan import Explored, Plan
from swiftspec.artifacts.report import Report
from swiftspec.reports.explored import fastest_first, groups
from swiftspec.reports.figures.style import BLUE, COLOURS, GREY, ORANGE, VERMILION, new_figure


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


def predicted_vs_measured(report: Report) -> Figure:
    """tokens/s, round duration and tokens per round of every policy, predicted and measured."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, 3)
    _bars(panels[0], report, "speed (tokens/s)", lambda figures: figures.tokens_per_s)
    _bars(panels[1], report, "round, median (ms)", lambda figures: figures.round_s.median * 1e3)
    _bars(panels[2], report, "tokens per round", lambda figures: figures.tokens_per_round)
    numbers = [number + 0.2 for number, policy in enumerate(report.policies) for _ in policy.repeats]
    repeats = [value for policy in report.policies for value in policy.repeats]
    panels[0].plot(numbers, repeats, "_", color="black", label="one repetition")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"Predicted against measured, {report.num_prompts} prompts; chosen: {report.chosen}")
    return figure


def _bars(axes: Axes, report: Report, label: str, of: Callable[[Figures], float]) -> None:
    numbers = np.arange(len(report.policies))
    predicted, measured = zip(*((of(each.predicted), of(each.measured)) for each in report.policies), strict=True)
    axes.bar(numbers - 0.2, predicted, 0.38, color=ORANGE, label="predicted")
    axes.bar(numbers + 0.2, measured, 0.38, color=BLUE, label="measured")
    names = [policy.policy for policy in report.policies]
    axes.set_xticks(numbers, names, rotation=15, ha="right")
    axes.set_ylabel(label)
    axes.grid(visible=True, axis="y", alpha=0.3)


def backtest_errors(groups: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Cumulative share of rows over their absolute error, a line for each group of (published, predicted)."""
    figure, axes = new_figure()
    for number, (title, pairs) in enumerate(groups.items()):
        colour, line = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else ":"
        errors = np.sort([abs(predicted / published - 1) * 100 for published, predicted in pairs])
        shares = np.arange(1, len(errors) + 1) / len(errors) * 100
        label = f"{title} ({len(errors)} rows)"
        axes.step([0, *errors], [0, *shares], where="post", color=colour, linestyle=line, label=label)
    axes.axvline(10, color=GREY, linewidth=0.8, linestyle="--")
    axes.set(xlabel="absolute error of the prediction (%)", ylabel="rows with at most that error (%)")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 100)
    axes.legend(loc="lower right")
    return figure
