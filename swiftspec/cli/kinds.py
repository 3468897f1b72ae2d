"""`swiftspec kinds`: kinds of drafts side by side on one target, at several loads."""

from collections.abc import Sequence
from pathlib import Path

from swiftspec.artifacts.kinds import KindComparison
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.planner.deployment import Deployment
from swiftspec.reports import kinds as said
from swiftspec.stages import compare_kinds as lay_out

__all__ = ["compare_kinds"]

_PUBLISHED = "published"


def compare_kinds(
    deployment: Deployment,
    *,
    target: str,
    drafts: Sequence[str],
    acceptance: Sequence[str],
    clients: str,
    trace: Path | None,
    dataset: str | None,
    seed: int,
    jobs: int,
    plot: Path | None,
    json_path: Path | None,
) -> KindComparison:
    """Compare, print and save."""
    check_outputs(
        inputs={"--target": target, "--trace": trace, "--op-tables": deployment.op_tables}, plot=plot, json=json_path
    )
    if acceptance and len(acceptance) != len(drafts):
        raise ValueError(
            f"--acceptance is given {len(acceptance)} times and --draft {len(drafts)} times; "
            f"expected one for each draft, in the same order, or {_PUBLISHED}"
        )
    rates = [None if text == _PUBLISHED else text for text in acceptance] or [None] * len(drafts)
    if twice := next((name for name in drafts if drafts.count(name) > 1), None):
        raise ValueError(f"--draft is {twice} twice; expected different ones")
    compared = lay_out(
        target,
        deployment=deployment,
        drafts=dict(zip(drafts, rates, strict=True)),
        clients=_loads(clients),
        trace=trace,
        dataset=dataset,
        seed=seed,
        num_jobs=jobs,
        stages=console.progress,
    )
    _show(compared)
    if plot is not None:
        from swiftspec.reports.figures import kinds_by_load, save_figure

        save_figure(plot, kinds_by_load(compared))
    write_json(json_path, compared.model_dump(mode="json"))
    return compared


def _loads(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"--clients is {text!r}; expected numbers separated by commas, such as 1,4,16,64")
    return [int(part) for part in parts]


def _show(compared: KindComparison) -> None:
    for load in compared.clients:
        rows = [said.load_row(kind, point) for kind, point in compared.ranked(load)]
        title = said.load_title(compared, load)
        if rows:
            console.table(title, said.LOAD_COLUMNS, rows, num_text_columns=2, last_is_text=True)
    console.table(
        said.LENGTH_TITLE,
        said.length_columns(compared),
        [said.length_row(compared, kind) for kind in compared.kinds if kind.points and kind is not compared.plain],
    )
    console.heading("The best for a user")
    for sentence in said.best(compared):
        console.paragraph(sentence)
    console.heading("Where acceptance comes from")
    for sentence in said.bases(compared):
        console.paragraph(sentence)
    console.paragraph()
    console.paragraph(said.to_know(compared))
