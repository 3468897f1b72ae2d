"""Sections about what was explored: every split and policy, speed against devices, what would change the choice."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from swiftspec.artifacts.plan import Explored, Plan
from swiftspec.reports.formatting import count, estimated, milliseconds, signed_percent, speed
from swiftspec.reports.html.charts import Mark, frontier
from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import DASH, Column, View, captioned, section, shape_text, table
from swiftspec.reports.html.sources import Source

__all__ = ["heat_map", "sensitivity", "speed_against_devices"]

_SIMULATED = (Source.SIMULATION, Source.LATENCIES, Source.ACCEPTANCE)
_NUM_LEVELS = 6


def heat_map(view: View) -> Markup | None:
    """tokens/s of every policy at its best on every split; shared and separate groups in tables of their own."""
    explored = view.plan.explored
    if not explored:
        return None
    speeds = [cell.tokens_per_s for cell in explored]
    scale = min(speeds), max(speeds)
    kinds = {
        "One group of devices": [cell for cell in explored if "+" not in cell.split],
        "Split target+draft": [cell for cell in explored if "+" in cell.split],
    }
    tables = [_heat_table(view.plan, cells, title, scale=scale) for title, cells in kinds.items() if cells]
    text = (
        "Tokens/s of the best shape simulated; the chosen one is framed. ~ marks an estimate from short simulations. "
        "A dash: nothing was simulated, because it does not fit or cannot win."
    )
    return section(
        "splits",
        "Every split and policy",
        element("p", text, class_="quiet"),
        element("div", *tables, class_="heats"),
        sources=_SIMULATED,
    )


def _split_order(split: str) -> tuple[tuple[int, ...], str]:
    sizes = [prod(map(int, size.split("x"))) for size in split.split("+")]
    return (sum(sizes), *sizes), split


def _heat_table(plan: Plan, explored: Sequence[Explored], title: str, *, scale: tuple[float, float]) -> Markup:
    """Policies and splits, the longer list down the page. scale: tokens/s of the palest and of the strongest colour."""
    best: dict[str, float] = {}
    for cell in explored:
        best[cell.policy] = max(cell.tokens_per_s, best.get(cell.policy, 0.0))
    policies = sorted(best, key=lambda policy: -best[policy])
    splits = sorted({cell.split for cell in explored}, key=_split_order)
    cells = {(cell.policy, cell.split): cell for cell in explored}
    upright = len(policies) < len(splits)
    down, across = (splits, policies) if upright else (policies, splits)

    def at(row: str, column: str) -> Markup:
        cell = cells.get((column, row) if upright else (row, column))
        if cell is None:
            return element("td", DASH, class_="none")
        return _heat_cell(cell, scale=scale, chosen=_is_chosen(plan, cell))

    corner = "policy" if not upright else "devices" if "+" not in splits[0] else "split"
    head = element("tr", element("th", corner, scope="col"), *_headings(across, upright))
    rows = [element("tr", element("th", row, scope="row"), *(at(row, column) for column in across)) for row in down]
    body = element("table", element("thead", head), element("tbody", *rows), class_="heat")
    return captioned(body, title, label=f"Tokens/s by policy and devices: {title.lower()}")


def _heat_cell(cell: Explored, *, scale: tuple[float, float], chosen: bool) -> Markup:
    palest, strongest = scale
    level = int((cell.tokens_per_s - palest) / ((strongest - palest) or 1.0) * _NUM_LEVELS)
    fast, per_token = speed(cell.tokens_per_s), milliseconds(cell.tpot_s)
    simulated = count(cell.num_options, "option")
    how = ", estimated from short simulations" if cell.estimated else ""
    title = f"{_named(cell)}: {fast} tokens/s, {per_token} ms per token{how}; the best of {simulated}"
    short = f"{cell.tokens_per_s:.0f}" if cell.tokens_per_s >= 100 else fast
    return element(
        "td", estimated(short, cell), class_=f"heat-{min(level, _NUM_LEVELS - 1)}{' best' * chosen}", title=title
    )


def _headings(names: Sequence[str], upright: bool) -> list[Markup]:
    """Column headings: policy names upright, splits horizontal."""
    class_ = "upright" if upright else "number"
    return [element("th", element("span", name), scope="col", class_=class_) for name in names]


def speed_against_devices(view: View) -> Markup | None:
    """The fastest plan for every number of devices, and the gain of each further device."""
    plan = view.plan
    fastest = plan.fastest_by_devices
    if len(fastest) < 2:
        return None
    marks = [
        Mark(devices, cell.tokens_per_s, f"{_named(cell)}: {_speed(cell)} tokens/s", _is_chosen(plan, cell))
        for devices, cell in fastest.items()
    ]
    label = "Tokens/s over devices: " + ", ".join(f"{mark.devices}: {speed(mark.tokens_per_s)}" for mark in marks)
    gains = [None, *((right.tokens_per_s / left.tokens_per_s - 1) for left, right in pairwise(fastest.values()))]
    rows = [
        (
            str(devices),
            _speed(cell),
            "" if gain is None else signed_percent(gain),
            speed(cell.tokens_per_s / devices),
            _named(cell),
        )
        for (devices, cell), gain in zip(fastest.items(), gains, strict=True)
    ]
    columns = (
        Column(heading="devices"),
        Column(heading="tokens/s", numeric=True),
        Column(heading="against the row above", numeric=True),
        Column(heading="per device", numeric=True),
        Column(heading="policy and split"),
    )
    chosen = next((number for number, mark in enumerate(marks) if mark.chosen), None)
    return section(
        "devices",
        "Speed against devices",
        element(
            "p",
            "Tokens/s of the fastest plan by number of devices; the line joins those that no smaller number reaches. "
            "~ marks an estimate from short simulations.",
            class_="quiet",
        ),
        element("div", frontier(marks, label=label), class_="plot"),
        table("Fastest plan by number of devices", columns, rows, chosen=chosen),
        sources=_SIMULATED,
    )


def _speed(cell: Explored) -> str:
    return estimated(speed(cell.tokens_per_s), cell)


def _named(cell: Explored) -> str:
    return f"{cell.policy} {cell.split}"


def _is_chosen(plan: Plan, cell: Explored) -> bool:
    return (cell.policy, cell.split) == (plan.chosen.policy, plan.chosen.split)


def sensitivity(view: View) -> Markup | None:
    """Sensitivity of the choice to the assumptions."""
    plan = view.plan
    if not plan.sensitivities:
        return None
    planned = plan.chosen.prediction.metrics.figures.tokens_per_s
    columns = (
        Column(heading="if"),
        Column(heading="the plan's tokens/s", numeric=True),
        Column(heading="change", numeric=True),
        Column(heading="the choice"),
        Column(heading="best then"),
        Column(heading="its tokens/s", numeric=True),
    )
    rows, remarks = [], []
    for case in plan.sensitivities:
        best, _, rest = case.best.partition(" (")
        shape = rest.removesuffix(")")
        rows.append(
            (
                case.change,
                speed(case.tokens_per_s) if case.tokens_per_s else "does not fit",
                signed_percent(case.tokens_per_s / planned - 1) if case.tokens_per_s else DASH,
                element("strong", "changes") if case.changes_choice else "stays",
                best,
                speed(case.best_tokens_per_s),
            )
        )
        remarks.append(shape if shape != shape_text(plan.chosen) else "")
    changing = sum(case.changes_choice for case in plan.sensitivities)
    verdict = (
        f"{changing} of {count(len(rows), 'case')} would change the choice" if changing else "The choice stays in all"
    )
    return section(
        "sensitivity",
        "What would change the choice",
        table(f"{verdict}; planned: {speed(planned)} tokens/s", columns, rows, remarks=remarks),
        sources=_SIMULATED,
    )
