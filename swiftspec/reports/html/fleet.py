"""Section about the fleet that a plan was made for: its size, the front, break-even loads, and attainment by class."""

from collections.abc import Iterator

from swiftspec.artifacts.fleet import Drafting, Fleet, LoadPoint, ReplicaKind
from swiftspec.reports import fleet as said
from swiftspec.reports.formatting import percent, speed
from swiftspec.reports.html.curves import Curve, Point, curves
from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import Column, View, section, table
from swiftspec.reports.html.sources import Source

__all__ = ["fleet"]


def fleet(view: View) -> Markup | None:
    """The section; None of a plan without a fleet."""
    found = view.plan.fleet
    if found is None:
        return None
    return section(
        "fleet",
        "Fleet",
        *(element("p", text) for text in (said.choice(view.plan, found), said.attainment(found), said.others(found))),
        _classes(found),
        element("h3", "Users' speed against tokens per device"),
        curves(
            list(_fronts(found)),
            x_title="tokens/s that a user sees",
            y_title="Tokens/s per device",
            label="Tokens/s per device over tokens/s per user, of every kind of replica within the limits",
        ),
        _rows(said.FRONT_TITLE, said.FRONT_COLUMNS, [said.front_row(found, *each) for each in found.front], 1),
        element("h3", "Break-even"),
        curves(
            list(_speeds(found)),
            x_title="requests/s per device",
            y_title="Tokens/s that a user sees",
            label="Tokens/s per user over load, of the best kind of replica of every place to draft",
        ),
        _rows(said.KIND_TITLE, said.KIND_COLUMNS, [said.kind_row(kind) for kind in found.kinds], 2, chosen=0),
        *([_lengths(found)] if found.draft_lengths else []),
        sources=(Source.SIMULATION, Source.LATENCIES, Source.ACCEPTANCE),
    )


def _classes(found: Fleet) -> Markup:
    """Attainment by class and kind, at the highest load per device that the kind serves within the limits."""
    names = list(found.point.attainment)
    rows = [
        (kind.name, f"{point.rate / kind.num_devices:.2f}", *(percent(point.attainment.get(name, 0)) for name in names))
        for kind in found.kinds
        for point in kind.within[-1:]
    ]
    return _rows(
        "Attainment by class at each kind's highest load within the limits", ("replica", "load", *names), rows, 1
    )


def _fronts(found: Fleet) -> Iterator[Curve]:
    """The front, then the points of every place to draft."""
    yield Curve("front", [_on_front(kind, point) for kind, point in found.front])
    for drafting in Drafting:
        kinds = [kind for kind in found.kinds if kind.drafting is drafting]
        points = [_on_front(kind, point) for kind in kinds for point in kind.within]
        if points:
            yield Curve(drafting, sorted(points), joined=False)


def _on_front(kind: ReplicaKind, point: LoadPoint) -> Point:
    per_device = point.tokens_per_s / kind.num_devices
    title = f"{kind.name}: {speed(point.user_tokens_per_s)} tokens/s per user, {speed(per_device)} per device"
    return Point(point.user_tokens_per_s, per_device, title)


def _speeds(found: Fleet) -> Iterator[Curve]:
    """The kind of every place to draft that serves most, by load."""
    for drafting in Drafting:
        kinds = [kind for kind in found.kinds if kind.drafting is drafting and kind.within]
        if kinds:
            best = max(kinds, key=lambda kind: kind.capacity / kind.num_devices)
            points = [
                Point(
                    point.rate / best.num_devices,
                    point.user_tokens_per_s,
                    f"{best.name}: {speed(point.user_tokens_per_s)} tokens/s, {percent(point.attained)} in limits",
                )
                for point in best.within
            ]
            yield Curve(f"{drafting}: {best.name}", points)


def _lengths(found: Fleet) -> Markup:
    rows = [said.length_row(best) for best in found.draft_lengths]
    return _rows(said.LENGTH_TITLE, said.LENGTH_COLUMNS, rows, 0)


def _rows(
    title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]], num_text_columns: int, chosen: int | None = None
) -> Markup:
    columns = [Column(heading=name, numeric=number >= num_text_columns) for number, name in enumerate(headings)]
    return table(title, columns, rows, chosen=chosen)
