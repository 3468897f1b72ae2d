"""Sections about the options of a plan that were simulated: every split and policy, and speed against devices."""

from collections.abc import Sequence
from itertools import pairwise, permutations
from math import prod

from swiftspec.artifacts.goal import cost_per_million
from swiftspec.artifacts.plan import Explored, Plan
from swiftspec.reports.formatting import count, estimated, milliseconds, money, signed_percent, speed
from swiftspec.reports.model import DASH, SIMULATED, Curve, Curves, HeatCell, Point, Section, Table, numbers, row, texts


def splits(plan: Plan) -> Section | None:
    """tokens/s of every policy at its best on every split; shared and separate groups in maps of their own."""
    if not plan.explored:
        return None
    text = (
        "Tokens/s of the best shape simulated; the chosen one is framed. ~ marks an estimate from short simulations. "
        "A dash: nothing was simulated, because it does not fit or cannot win."
    )
    together, apart = groups(plan)
    named = (("One group of devices", together), ("Split target+draft", apart))
    maps = [_heat_map(plan, cells, title) for title, cells in named if cells]
    return Section(key="splits", title="Every split and policy", parts=maps, caption=text, sources=SIMULATED)


def groups(plan: Plan) -> tuple[list[Explored], list[Explored]]:
    """Explored options on one group of devices, and on one for each model."""
    together = [cell for cell in plan.explored if "+" not in cell.split]
    return together, [cell for cell in plan.explored if "+" in cell.split]


def fastest_first(explored: Sequence[Explored]) -> list[str]:
    """Policies by their best tokens/s."""
    best: dict[str, float] = {}
    for cell in explored:
        best[cell.policy] = max(cell.tokens_per_s, best.get(cell.policy, 0.0))
    return sorted(best, key=lambda policy: -best[policy])


def _heat_map(plan: Plan, explored: Sequence[Explored], title: str) -> Table:
    """Policies, fastest first, and splits, the longer list down the page."""
    policies = fastest_first(explored)
    splits = sorted({cell.split for cell in explored}, key=_split_order)
    cells = {pair: _heat_cell(plan, cell) for cell in explored for pair in permutations((cell.policy, cell.split))}
    corner, down, across = "policy", policies, splits
    if len(policies) < len(splits):
        corner, down, across = "split", splits, policies
    rows = [row(name, *(cells.get((name, column), DASH) for column in across)) for name in down]
    return Table(title=title, columns=(*texts(corner), *numbers(*across)), rows=rows)


def _split_order(split: str) -> tuple[tuple[int, ...], str]:
    sizes = [prod(map(int, size.split("x"))) for size in split.split("+")]
    return (sum(sizes), *sizes), split


def _heat_cell(plan: Plan, cell: Explored) -> HeatCell:
    speeds = [other.tokens_per_s for other in plan.explored]
    share = (cell.tokens_per_s - min(speeds)) / ((max(speeds) - min(speeds)) or 1.0)
    short = f"{cell.tokens_per_s:.0f}" if cell.tokens_per_s >= 100 else speed(cell.tokens_per_s)
    how = ", estimated from short simulations" if cell.estimated else ""
    tip = f"{_speed(cell)}, {milliseconds(cell.tpot_s)} ms per token{how}; the best of "
    return HeatCell(estimated(short, cell), share, tip + count(cell.num_options, "option"), _is_chosen(plan, cell))


def devices(plan: Plan) -> Section | None:
    """The fastest option found on every number of devices, the gain of each further one, and its cost with a price."""
    fastest, price = plan.fastest_by_devices, plan.goal.price_per_hour
    if len(fastest) < 2:
        return None
    cells = list(fastest.values())
    gains = ["", *(signed_percent(after.tokens_per_s / cell.tokens_per_s - 1) for cell, after in pairwise(cells))]
    rows = [
        row(
            cell.policy,
            cell.split,
            str(number),
            estimated(speed(cell.tokens_per_s), cell),
            estimated(speed(cell.tokens_per_s / number), cell),
            estimated(milliseconds(cell.tpot_s), cell),
            *([] if price is None else [money(cost_per_million(price, number, cell.tokens_per_s))]),
            gain,
            chosen=_is_chosen(plan, cell),
        )
        for (number, cell), gain in zip(fastest.items(), gains, strict=True)
    ]
    costs = [] if price is None else ["per million"]
    points = [
        Point(number, cell.tokens_per_s, _speed(cell), _is_chosen(plan, cell)) for number, cell in fastest.items()
    ]
    chart = Curves(
        curves=[Curve("fastest found", points)],
        x_title="number of devices",
        y_title="Tokens/s",
        label="Tokens/s over devices: " + ", ".join(f"{point.x:.0f}: {speed(point.y)}" for point in points),
    )
    table = Table(
        title="Fastest found on each number of devices",
        columns=(
            *texts("policy", "split"),
            *numbers("devices", "tokens/s", "per device", "ms per token", *costs, "against the row above"),
        ),
        rows=rows,
        footnote="~ estimated from short simulations" if any(cell.estimated for cell in cells) else "",
    )
    return Section(key="devices", title="Speed against devices", parts=(chart, table), sources=SIMULATED)


def _speed(cell: Explored) -> str:
    return f"{cell.policy} {cell.split}: {speed(cell.tokens_per_s)} tokens/s"


def _is_chosen(plan: Plan, cell: Explored) -> bool:
    return (cell.policy, cell.split) == (plan.chosen.policy, plan.chosen.split)
