"""Sections of a report on the terminal: sentences and tables; of charts only bars, in words."""

from collections.abc import Sequence

from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.reports.model import Bar, Doubt, Section, Table
from swiftspec.reports.plan import plan_sections

__all__ = ["show", "show_plan"]

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
