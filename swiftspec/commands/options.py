"""Flags that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "AcceptanceMethod",
    "Draft",
    "Dtype",
    "Inflate",
    "Jobs",
    "Json",
    "Limit",
    "NewTokens",
    "PlanFile",
    "Plot",
    "ProfileDtype",
    "ProfileFile",
    "PromptFile",
    "Prompts",
    "Repeats",
    "Seed",
    "Target",
    "Timeline",
    "TraceFile",
]

Target = Annotated[str, typer.Option(metavar="M", help="Target: a Hugging Face directory, or demo/target.")]
Draft = Annotated[str, typer.Option(metavar="M", help="Draft: a Hugging Face directory, or demo/draft.")]
Inflate = Annotated[
    str | None,
    typer.Option(metavar="SHAPE", help="Expand the target to this shape at load, as layers=24,hidden=1024."),
]
Dtype = Annotated[str, typer.Option(help="auto (measures which is faster), float32 (fp32) or bfloat16 (bf16).")]
PlanFile = Annotated[Path, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it.")]
Prompts = Annotated[Path, typer.Option(metavar="FILE", help="JSON lines with `prompt`, or Spec-Bench `turns`.")]
PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Many: JSON lines with `prompt`, or Spec-Bench `turns`.")
]
Timeline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the timeline as JSON that ui.perfetto.dev opens.")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .svg or .pdf.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write machine-readable results.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]
NewTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens per prompt at most; else the plan's.")]
ProfileFile = Annotated[Path, typer.Option(metavar="FILE", help="A profile of this pair.")]
TraceFile = Annotated[Path, typer.Option(metavar="FILE", help="A trace of this pair.")]
ProfileDtype = Annotated[str | None, typer.Option(help="The profile's if not given.")]
Repeats = Annotated[int, typer.Option(min=1, help="Repetitions; speeds are their medians.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many prompts, spread over the file.")]
AcceptanceMethod = Annotated[
    Literal["follow", "residual"],
    typer.Option(
        help="Accept a draft token if the target draws it too, or by both models' probabilities: more often at "
        "temperatures above 0, in co-located policies."
    ),
]
Jobs = Annotated[int, typer.Option(help="Processes that simulate; -1 for one per core.")]
