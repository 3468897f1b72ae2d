"""Figure of kinds of drafts: what a user sees, and how much faster that is than without a draft, by load."""

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from swiftspec.artifacts.kinds import KindComparison
from swiftspec.reports.figures.style import COLOURS, GREY

__all__ = ["kinds_by_load"]

_MARKERS = "osD^vPX*"


def kinds_by_load(compared: KindComparison) -> Figure:
    """Tokens/s of a user over clients, and over those of no draft; dashed where acceptance is assumed."""
    figure = Figure(figsize=(12.5, 5.2), layout="constrained")
    speeds, gains = figure.subplots(1, 2)
    number = 0
    for kind in compared.kinds:
        if not kind.points:
            continue
        is_plain = kind is compared.plain
        colour, marker = (GREY, ".") if is_plain else (COLOURS[number % 7], _MARKERS[number % len(_MARKERS)])
        number += not is_plain
        style = "--" if kind.provenance == "assumed" else "-"
        loads = [point.clients for point in kind.points]
        values = [point.user_tokens_per_s for point in kind.points]
        speeds.plot(loads, values, style, color=colour, marker=marker, label=kind.name)
        plain = [compared.plain.at(load) for load in loads]
        ratios = [value / point.user_tokens_per_s for value, point in zip(values, plain, strict=True) if point]
        gains.plot(loads[: len(ratios)], ratios, style, color=colour, marker=marker)
    speeds.set_ylabel("tokens/s that a user sees")
    gains.set_ylabel("times as fast as without a draft")
    for axes in (speeds, gains):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(compared.clients))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(compared.clients, [str(load) for load in compared.clients])
        axes.set_xlabel("clients at once")
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
    speeds.legend(title="dashed: acceptance assumed")
    figure.suptitle(f"{compared.target} in {compared.quantisation} on {compared.num_devices} {compared.device}")
    return figure
