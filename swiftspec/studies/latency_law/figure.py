"""Figure of a sweep: the law that all runs follow, and the speed-up by load."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swiftspec.reports.figures.style import BLUE, COLOURS, GREY
from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.curves import fitted_law
from swiftspec.studies.latency_law.document import Curve, CurveKind, Sweep, SweptPolicy
from swiftspec.studies.latency_law.law import LatencyLaw
from swiftspec.studies.latency_law.speculation import Comparison

_PLAIN = "autoregressive"
_MARKERS = "osD^vPX"
_SAMPLES = 300
_BEYOND = 1.08  # what is drawn to the right of the last thing of interest


class _Line(NamedTuple):
    """A policy's curve of one origin, and its place among the others."""

    policy: SweptPolicy
    kind: CurveKind
    curve: Curve
    law: LatencyLaw
    colour: str
    marker: str

    @property
    def name(self) -> str:
        """What tells it apart: its number of draft tokens, or its name."""
        length = self.policy.num_draft_tokens
        return self.policy.policy if length is None else f"{self.policy.policy}, {length} draft tokens"

    @property
    def points(self) -> list[tuple[float, float]]:
        """Rate and mean latency; 0 is one client alone."""
        return [(0.0, self.curve.synchronous.e2e_s), *((point.rate, point.e2e_s) for point in self.curve.points)]


def latency_by_load(swept: Sweep) -> Figure:
    """All runs on the curve 1 / (1 - x), and the speed-up over plain decoding if it was swept, too."""
    lines = list(_lines(swept))
    plain = next((line for line in lines if line.policy.policy == _PLAIN and line.curve is line.policy.curve), None)
    others = [line for line in lines if line.policy.policy != _PLAIN and line.curve is line.policy.curve]
    has_speed_up = plain is not None and bool(others)
    figure = Figure(figsize=(12.5 if has_speed_up else 6.8, 5.2), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, 2 if has_speed_up else 1, squeeze=False)[0]
    for axes in panels:
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
    _collapse(panels[0], lines)
    if plain is not None and others:
        _speed_up(panels[1], plain, others, swept.max_running)
    return figure


def _lines(swept: Sweep) -> Iterator[_Line]:
    coverage = None
    if swept.experts is not None and swept.active_experts is not None:
        coverage = ExpertCoverage(experts=swept.experts, active=swept.active_experts)
    for number, policy in enumerate(swept.policies):
        colour = GREY if policy.policy == _PLAIN else COLOURS[(number - 1) % len(COLOURS)]
        marker = _MARKERS[number % len(_MARKERS)]
        for kind, curve in policy.curves.items():
            if kind is not CurveKind.RETIMED:
                yield _Line(policy, kind, curve, fitted_law(policy, curve, coverage), colour, marker)


def _collapse(axes: Axes, lines: Sequence[_Line]) -> None:
    """Every run in units of its own law."""
    several = len({line.kind for line in lines}) > 1
    loads = [line.law.load(rate) for line in lines for rate, _ in line.points]
    x = np.linspace(0, min(0.99, max(loads) * _BEYOND), _SAMPLES)
    axes.plot(x, 1 / (1 - x), color="black", linewidth=1.2, label="1 / (1 - x)", zorder=1)
    for line in lines:
        is_hollow = several and line.kind is CurveKind.PREDICTED
        axes.plot(
            [line.law.load(rate) for rate, _ in line.points],
            [seconds / (line.law.c1_s * line.law.reading_factor(rate * seconds)) for rate, seconds in line.points],
            linestyle="none",
            marker=line.marker,
            markersize=6.5,
            markerfacecolor="white" if is_hollow else line.colour,
            markeredgecolor=line.colour if is_hollow else "white",
            markeredgewidth=1.2 if is_hollow else 0.6,
            label=f"{line.name}{f', {line.kind}' if several else ''}: R² {line.curve.fitted.r2:.3f}",
            zorder=2,
        )
    axes.set(
        title="Every run in units of its own law",
        xlabel="load x = requests/s · C2",
        ylabel="mean end-to-end latency / C1",
        xlim=(-0.02, float(x[-1])),
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize="small")


def _speed_up(axes: Axes, plain: _Line, others: Sequence[_Line], max_running: int) -> None:
    """Plain latency over that of each policy, by rate."""
    found = [Comparison(plain=plain.law, speculative=line.law) for line in others]
    able = [min(plain.curve.saturating.rate, line.curve.saturating.rate) for line in others]
    evens = [each.break_even_rate for each in found]
    last = max([*able, *(rate for rate in evens if rate is not None)]) * _BEYOND
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axvline(max(able), color=GREY, linewidth=0.8, linestyle=":")
    for line, compared, most, even in zip(others, found, able, evens, strict=True):
        end = min(last, 0.999 * compared.plain.saturation, 0.999 * compared.speculative.saturation)
        for x, style in ((np.linspace(0, most, _SAMPLES), "-"), (np.linspace(most, max(most, end), _SAMPLES), ":")):
            axes.plot(x, [compared.speed_up(rate) for rate in x], style, color=line.colour, linewidth=1.5)
        axes.plot(
            [rate for rate, _ in line.points],
            [plain.law.latency_s(rate) / seconds for rate, seconds in line.points],
            linestyle="none",
            marker=line.marker,
            markersize=6.5,
            color=line.colour,
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=line.name,
        )
        if even is not None:
            axes.plot([even], [1.0], marker="o", markersize=9, markerfacecolor="none", markeredgecolor=line.colour)
    axes.set(
        title="Speed-up over plain decoding",
        xlabel="requests/s",
        ylabel="plain latency / latency",
        xlim=(0, last),
    )
    c2_s = plain.law.c2_s
    above = axes.secondary_xaxis(
        "top", functions=(lambda rate: np.multiply(rate, c2_s), lambda load: np.divide(load, c2_s))
    )
    above.set_xlabel("load of the plain server, requests/s · C2", fontsize="small")
    above.tick_params(labelsize="small")
    axes.set_ylim(bottom=0)
    note = f"{max_running} at once serve\n{max(able):.3g} requests/s"
    axes.annotate(
        note,
        (max(able), 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        fontsize="small",
        color="#555555",
    )
    axes.plot(
        [], [], linestyle="none", marker="o", markersize=9, markerfacecolor="none", color=BLUE, label="break-even"
    )
    axes.legend(frameon=False, fontsize="small")
