"""Printing of a plan's fleet."""

from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.plan import Plan
from swiftspec.cli import console
from swiftspec.cli.columns import count
from swiftspec.reports import fleet as said

__all__ = ["show_fleet"]


def show_fleet(made: Plan, fleet: Fleet) -> None:
    """The fleet in sentences, its kinds of replicas, the front, and the best draft length by batch."""
    console.paragraph(said.choice(made, fleet))
    console.paragraph(said.attainment(fleet))
    console.paragraph(said.others(fleet))
    console.table(said.KIND_TITLE, said.KIND_COLUMNS, [said.kind_row(kind) for kind in fleet.kinds], num_text_columns=2)
    console.paragraph(
        "  Capacity and loads in requests/s per device; ~ marks what longer simulations did not check; + the highest "
        "load that both could serve"
    )
    console.table(
        said.FRONT_TITLE,
        said.FRONT_COLUMNS,
        [said.front_row(fleet, kind, point) for kind, point in fleet.front],
        num_text_columns=1,
    )
    if fleet.draft_lengths:
        console.table(said.LENGTH_TITLE, said.LENGTH_COLUMNS, [said.length_row(best) for best in fleet.draft_lengths])
    console.paragraph(f"  {count(fleet.num_simulations, 'simulation')} of replicas under load")
