"""Figures of recordings: profiles, traces, timelines."""

from collections.abc import Set
from itertools import groupby

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.reports.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, YELLOW, new_figure
from swiftspec.timing.timeline import Phase, Timeline

PHASE_COLOURS = {
    Phase.PREFILL: GREEN,
    Phase.EXPAND: ORANGE,
    Phase.FUZZY: "#F5C76B",
    Phase.VERIFY: BLUE,
    Phase.EXIT: SKY,
    Phase.FINISH: BLUE,
    Phase.COMPACT: PURPLE,
    Phase.SEND: VERMILION,
    Phase.WAIT: "#DDDDDD",
    Phase.COMMIT: YELLOW,
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def phase_patches(present: Set[Phase]) -> list[Patch]:
    """Patches of a legend, of the phases that are drawn."""
    return [Patch(color=colour, label=phase.value) for phase, colour in PHASE_COLOURS.items() if phase in present]


def acceptance_by_rank(trace: AcceptanceTrace, *, num_ranks: int = 16) -> Figure:
    """Shares of the target's tokens that are the draft's first, second, ... choice, single and cumulative."""
    shares = np.array(trace.rank_acceptance(num_ranks)) * 100
    ranks = np.arange(1, num_ranks + 1)
    figure, axes = new_figure()
    axes.bar(ranks, shares, color=BLUE, label="exactly this choice")
    axes.plot(ranks, shares.cumsum(), color=ORANGE, marker="o", label="up to this choice")
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
    figure, axes = new_figure()
    steps = [step for step in profile.steps if step.phase in (Phase.EXPAND, Phase.VERIFY)]
    contexts = sorted({step.context for step in steps})
    context = contexts[len(contexts) // 2] if contexts else 0
    steps = sorted((step for step in steps if step.context == context), key=lambda step: (_line(step), step.rows))
    colours = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY)
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
        title=f"Whole forwards after a prefix of {context} tokens",
    )
    axes.legend(fontsize="small")
    return figure


def _line(step: StepPoint) -> str:
    peer = "busy" if step.peer_busy else "idle"
    ranks = f" of {step.ranks} ranks" if step.ranks > 1 else ""
    return f"{step.phase}, {step.degree} device{'s' * (step.degree > 1)}{ranks}, peer {peer}{', cold' * step.cold}"


def timeline_rounds(timeline: Timeline, *, first: int = 5, num_rounds: int = 10) -> Figure:
    """Timeline of each process over `num_rounds` rounds, from number `first` (0 is the first) on, or the last ones."""
    start_s, end_s, spans, processes = timeline.excerpt(first=first, num_rounds=num_rounds)
    figure = Figure(figsize=(12, 3), layout="constrained")
    axes = figure.subplots()
    for span in spans:
        height = 0.5 if span.phase is Phase.WAIT else 0.8
        axes.broken_barh(
            [((span.start_s - start_s) * 1e3, (span.end_s - span.start_s) * 1e3)],
            (processes.index((span.role, span.group)) - height / 2, height),
            facecolors=PHASE_COLOURS[span.phase],
            linewidth=0,
        )
    handles = phase_patches({span.phase for span in spans})
    axes.legend(handles=handles, ncols=len(handles), loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    axes.set(
        xlabel="time (ms)",
        xlim=(0, (end_s - start_s) * 1e3),
        yticks=range(len(processes)),
        yticklabels=timeline.process_names,
        title=f"{min(num_rounds, len(timeline.verifications_s))} rounds of {timeline.request}",
    )
    axes.invert_yaxis()
    return figure
