"""Figures of profiles, traces, timelines and reports. Built on `Figure` alone: no pyplot, no global state, no window.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; every axis names its unit.
"""

import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from swiftspec.acceptance import AcceptanceTrace
from swiftspec.documents import write_atomically
from swiftspec.plan import Candidate
from swiftspec.profile import Profile, StepPoint
from swiftspec.report import PolicyReport, Report
from swiftspec.timeline import Phase, Timeline

__all__ = [
    "acceptance_by_rank",
    "predicted_vs_measured",
    "render",
    "save_figure",
    "step_latency",
    "timeline_rounds",
    "tournament",
]

_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
_SKY, _VERMILION, _YELLOW, _GREY = "#56B4E9", "#D55E00", "#F0E442", "#999999"
_PHASE_COLOURS = {
    Phase.PREFILL: _GREEN,
    Phase.EXPAND: _ORANGE,
    Phase.FUZZY: "#F5C76B",
    Phase.VERIFY: _BLUE,
    Phase.EXIT: _SKY,
    Phase.FINISH: _BLUE,
    Phase.COMPACT: _PURPLE,
    Phase.SEND: _VERMILION,
    Phase.WAIT: "#DDDDDD",
    Phase.COMMIT: _YELLOW,
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DPI = 120


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure, whole or not at all, in the format that the path's suffix names: png, svg or pdf."""
    write_atomically(path, render(figure, path.suffix.removeprefix(".")))


def render(figure: Figure, file_format: str) -> bytes:
    """The bytes of a figure as png, svg or pdf."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, dpi=_DPI)
    return buffer.getvalue()


def acceptance_by_rank(trace: AcceptanceTrace, *, num_ranks: int = 16) -> Figure:
    """How often the target's token is the draft's first, second, ... choice; and how often one of the first so many."""
    shares = np.array(trace.rank_acceptance(num_ranks)) * 100
    ranks = np.arange(1, num_ranks + 1)
    figure, axes = _figure()
    axes.bar(ranks, shares, color=_BLUE, label="exactly this choice")
    axes.plot(ranks, shares.cumsum(), color=_ORANGE, marker="o", label="up to this choice")
    axes.set(
        xlabel="rank in the draft's choices (1 = first)",
        ylabel="target's tokens (%)",
        ylim=(0, 100),
        title=f"Acceptance by rank: {trace.num_tokens} tokens of {len(trace.prompts)} prompts",
    )
    axes.legend()
    return figure


def step_latency(profile: Profile) -> Figure:
    """Median latency of a whole forward over its rows, 5 % to 95 % shaded; a line per phase, degree and peer state."""
    figure, axes = _figure()
    steps = [step for step in profile.steps if step.phase in (Phase.EXPAND, Phase.VERIFY)]
    contexts = sorted({step.context for step in steps})
    context = contexts[len(contexts) // 2] if contexts else 0
    steps = sorted((step for step in steps if step.context == context), key=lambda step: (_line(step), step.rows))
    colours = (_BLUE, _ORANGE, _GREEN, _PURPLE, _SKY, _VERMILION, _GREY)
    for number, (line, group) in enumerate(groupby(steps, key=_line)):
        points = list(group)
        rows = [point.rows for point in points]
        quantiles_ms = np.array([point.quantiles_s for point in points]) * 1e3
        colour = colours[number % len(colours)]
        median_ms = [point.latency.median_s * 1e3 for point in points]
        axes.plot(rows, median_ms, marker=_MARKERS[number % len(_MARKERS)], label=line, color=colour)
        axes.fill_between(rows, quantiles_ms[:, 1], quantiles_ms[:, -2], alpha=0.2, linewidth=0, color=colour)
    axes.set(
        xlabel="rows of the forward (tokens)",
        ylabel="latency (ms)",
        yscale="log",
        title=f"Whole forwards behind a prefix of {context} tokens",
    )
    axes.legend(fontsize="small")
    return figure


def predicted_vs_measured(report: Report) -> Figure:
    """tokens/s, round duration and tokens per round of every policy, predicted beside measured."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, 3)
    _bars(panels[0], report, "speed (tokens/s)", [_speeds(policy) for policy in report.policies])
    _bars(panels[1], report, "round, median (ms)", [_rounds_ms(policy) for policy in report.policies])
    _bars(panels[2], report, "tokens per round", [_tokens_per_round(policy) for policy in report.policies])
    repeats = [(number, value) for number, policy in enumerate(report.policies) for value in policy.repeats]
    panels[0].plot(
        [number + 0.2 for number, _ in repeats],
        [value for _, value in repeats],
        linestyle="none",
        marker="_",
        color="black",
        label="one repetition",
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"Predicted against measured, {report.num_prompts} prompts; chosen: {report.chosen}")
    return figure


def tournament(candidates: Sequence[Candidate], report: Report | None) -> Figure:
    """tokens/s of every policy at its best: predicted, with the interval over prompts, and measured if it was."""
    figure = Figure(figsize=(8, 0.5 * len(candidates) + 1.5), layout="constrained")
    axes = figure.subplots()
    numbers = np.arange(len(candidates))
    predictions = [candidate.prediction for candidate in candidates]
    predicted = np.array([prediction.metrics.figures.tokens_per_s for prediction in predictions])
    reach = [
        predicted - [prediction.tokens_per_s_low for prediction in predictions],
        [prediction.tokens_per_s_high for prediction in predictions] - predicted,
    ]
    measured = {} if report is None else {policy.policy: policy.measured.tokens_per_s for policy in report.policies}
    height = 0.38 if measured else 0.7
    shift = height / 2 if measured else 0.0
    axes.barh(numbers - shift, predicted, height, xerr=reach, color=_ORANGE, label="predicted, 95 % over prompts")
    if measured:
        speeds = [measured[candidate.policy] for candidate in candidates]
        axes.barh(numbers + shift, speeds, height, color=_BLUE, label="measured")
    axes.set(xlabel="speed (tokens/s)", title="Every policy at its best")
    axes.set_yticks(numbers, [f"{candidate.policy} {candidate.split}" for candidate in candidates])
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.legend()
    return figure


def timeline_rounds(timeline: Timeline, *, first: int = 5, num_rounds: int = 10) -> Figure:
    """What each process did during some rounds, from the `first` one (0 is the first) or the last so many."""
    starts_s = timeline.verifications_s
    first = max(0, min(first, len(starts_s) - num_rounds))
    window = [*starts_s, timeline.e2e_s + timeline.start_s][first : first + num_rounds + 1]
    start_s, end_s = (window[0], window[-1]) if starts_s else (timeline.start_s, window[-1])
    figure = Figure(figsize=(12, 3), layout="constrained")
    axes = figure.subplots()
    processes = timeline.processes
    for span in timeline.spans:
        if span.end_s > start_s and span.start_s < end_s:
            left_s, right_s = max(span.start_s, start_s), min(span.end_s, end_s)
            bar = [((left_s - start_s) * 1e3, (right_s - left_s) * 1e3)]
            height = 0.5 if span.phase is Phase.WAIT else 0.8
            axes.broken_barh(
                bar,
                (processes.index((span.role, span.rank)) - height / 2, height),
                facecolors=_PHASE_COLOURS[span.phase],
                linewidth=0,
            )
    present = {span.phase for span in timeline.spans if span.end_s > start_s and span.start_s < end_s}
    handles = [Patch(color=colour, label=phase.value) for phase, colour in _PHASE_COLOURS.items() if phase in present]
    axes.legend(handles=handles, ncols=len(handles), loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    axes.set(
        xlabel="time (ms)",
        xlim=(0, (end_s - start_s) * 1e3),
        yticks=range(len(processes)),
        yticklabels=[f"{role} {rank}" if (role, 1) in processes else role.value for role, rank in processes],
        title=f"{min(num_rounds, len(starts_s))} rounds of {timeline.request}",
    )
    axes.invert_yaxis()
    return figure


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _line(step: StepPoint) -> str:
    peer = "busy" if step.peer_busy else "idle"
    return f"{step.phase}, {step.degree} device{'s' * (step.degree > 1)}, peer {peer}"


def _bars(axes: Axes, report: Report, label: str, pairs: Sequence[tuple[float, float]]) -> None:
    numbers = np.arange(len(pairs))
    axes.bar(numbers - 0.2, [pair[0] for pair in pairs], 0.38, color=_ORANGE, label="predicted")
    axes.bar(numbers + 0.2, [pair[1] for pair in pairs], 0.38, color=_BLUE, label="measured")
    names = [policy.policy for policy in report.policies]
    axes.set_xticks(numbers, names, rotation=15, ha="right")
    axes.set_ylabel(label)
    axes.grid(visible=True, axis="y", alpha=0.3)


def _speeds(policy: PolicyReport) -> tuple[float, float]:
    return policy.predicted.tokens_per_s, policy.measured.tokens_per_s


def _rounds_ms(policy: PolicyReport) -> tuple[float, float]:
    return policy.predicted.round_s.median * 1e3, policy.measured.round_s.median * 1e3


def _tokens_per_round(policy: PolicyReport) -> tuple[float, float]:
    return policy.predicted.tokens_per_round, policy.measured.tokens_per_round
