"""Printing of a plan's predictions under load."""

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.under_load import LoadPrediction, UnderLoad
from swiftspec.cli import console
from swiftspec.cli.columns import count
from swiftspec.reports.under_load import COLUMNS, TITLE, assumed, cached, choice, load_row, single_request, unmet

__all__ = ["show_under_load"]


def show_under_load(made: Plan, load: UnderLoad) -> None:
    """The choice in a sentence, what it assumes, and a row for the best candidate of every policy."""
    console.paragraph(choice(made, load))
    console.paragraph(assumed(load))
    for sentence in filter(None, (cached(made, load), unmet(made, load))):
        console.paragraph(sentence)
    console.paragraph(single_request(made, load))
    ranked = load.ranked
    console.table(
        TITLE,
        COLUMNS,
        [load_row(policy, made.candidates[policy].split, prediction) for policy, prediction in ranked.items()],
        num_text_columns=2,
        remarks=[_shape(prediction) for prediction in ranked.values()],
    )
    console.paragraph(f"  {count(load.num_candidates, 'candidate')} simulated under this load")


def _shape(prediction: LoadPrediction) -> str:
    return prediction.candidate.partition(" (")[2].removesuffix(")")
