"""Sections of a report on the terminal, sentences and tables, of charts only bars, in words; and figures of a load."""

from collections.abc import Iterator, Mapping, Sequence

from swiftspec.artifacts.load_metrics import LoadMetrics, Percentiles
from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.reports.formatting import milliseconds, percent, speed
from swiftspec.reports.model import Bar, Doubt, Section, Table
from swiftspec.reports.plan import plan_sections

_PAGE_ONLY = ("splits", "classes")  # as wide as the number of splits and of classes
_MOST_ROWS = {"rejected": 8}  # of the tables of a section; a page has them all


def show_plan(plan: Plan) -> None:
    """Print the choice, its rivals, and what the prediction rests on."""
    show([section for section in plan_sections(plan) if section.key not in _PAGE_ONLY])


def show(sections: Sequence[Section], *, headings: bool = False) -> None:
    """Print sections. headings: whether with the titles of those without a table; a table has its own title."""
    after_table = False
    for section in sections:
        if headings and not any(isinstance(part, Table) for part in section.parts):
            console.heading(section.title)
            after_table = False
        for part in section.parts:
            if isinstance(part, Table):
                _show_table(part, _MOST_ROWS.get(section.key))
                after_table = True
            elif isinstance(part, str | Doubt | Bar):
                if after_table:
                    console.paragraph()
                console.paragraph(part if isinstance(part, str) else part.title)
                after_table = False


def _show_table(table: Table, most_rows: int | None) -> None:
    rows, are_text = table.rows[:most_rows], [column.is_text for column in table.columns]
    console.table(
        table.title,
        [column.title for column in table.columns],
        [[str(cell) for cell in row.cells] for row in rows],
        num_text_columns=are_text.index(False),
        last_is_text=are_text[-1],
        remarks=[row.remark for row in rows],
    )
    hidden = len(table.rows) - len(rows)
    for footnote in (f"and {hidden} more" if hidden else "", table.footnote):
        if footnote:
            console.paragraph(footnote, indent="  ")


def show_latencies(title: str, latencies: Mapping[str, Percentiles]) -> None:
    rows = [(name, *map(milliseconds, (of.mean, of.p50, of.p95, of.p99))) for name, of in latencies.items()]
    console.table(title, ("figure", "mean", "p50", "p95", "p99"), rows)


def throughput(metrics: LoadMetrics) -> Iterator[tuple[str, str]]:
    """Figures of a load with their values: what was served."""
    refused = f", {metrics.refused} refused" if metrics.refused else ""
    yield "requests", f"{metrics.completed} in {metrics.duration_s:.1f} s{refused}"
    yield "requests/s", f"{metrics.request_throughput:.2f}"
    yield "output tokens/s", speed(metrics.output_throughput)


def attained(metrics: LoadMetrics) -> Iterator[tuple[str, str]]:
    """The classes whose limits some requests have not kept, with the share that did."""
    for name, share in metrics.attainment.items():
        if share < 1:
            yield f"within their limits, {name}", percent(share)
