"""Figures of profiles, traces, timelines, plans and reports.

Built on matplotlib's `Figure` alone: no pyplot, no global state, no window. Every axis names its unit.
"""

from swiftspec.reports.figures.load import kinds_by_load, shared_steps, shared_steps_compared
from swiftspec.reports.figures.plans import backtest_errors, heat_map, predicted_vs_measured
from swiftspec.reports.figures.recordings import acceptance_by_rank, step_latency, timeline_rounds
from swiftspec.reports.figures.style import COLOURS, new_figure, render, save_figure

__all__ = [
    "COLOURS",
    "acceptance_by_rank",
    "backtest_errors",
    "heat_map",
    "kinds_by_load",
    "new_figure",
    "predicted_vs_measured",
    "render",
    "save_figure",
    "shared_steps",
    "shared_steps_compared",
    "step_latency",
    "timeline_rounds",
]
