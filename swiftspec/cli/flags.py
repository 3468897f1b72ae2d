"""Flags that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "TOP_K",
    "TOP_P",
    "ApiKeyFile",
    "Draft",
    "Dtype",
    "Engine",
    "EnginePython",
    "Inflate",
    "Jobs",
    "Json",
    "Load",
    "NewTokens",
    "NumPrompts",
    "PlanFile",
    "Plot",
    "PolicyName",
    "Prompts",
    "Ray",
    "SaveInflated",
    "Seed",
    "ServerArgs",
    "Target",
    "Temperature",
    "Timeline",
    "settings",
]

Target = Annotated[str, typer.Option(metavar="M", help="Target: a Hugging Face directory, or demo/target.")]
Draft = Annotated[str, typer.Option(metavar="M", help="Draft: a Hugging Face directory, or demo/draft.")]
Inflate = Annotated[
    str | None,
    typer.Option(metavar="SHAPE", help="Expand the target to this shape when loading it, e.g. layers=24,hidden=1024."),
]
SaveInflated = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="With --inflate: also write the expanded target, which has the same output."),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="float32 (fp32: exact, a bf16 checkpoint still takes two bytes a weight), bfloat16 (bf16); on CPUs also "
        "int8 (lossy), on GPUs float16, fp8 and int4. auto: bfloat16 on a GPU; on a CPU the faster of fp32 and bf16, "
        "measured for each model. TARGET,DRAFT: one for each."
    ),
]
PlanFile = Annotated[Path, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it.")]
PolicyName = Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")]
Prompts = Annotated[Path, typer.Option(metavar="FILE", help="JSON lines with `prompt`, or Spec-Bench `turns`.")]
NumPrompts = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Use at most this many prompts, spread over the file."),
]
NewTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens per prompt, at most. Default: the plan's.")]
Load = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PROCESS",
        help="Serve these requests: a file of `swiftspec workload`, or closed:CLIENTS or poisson:RATE.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(metavar="NAME[@RELEASE]", help="The engine that will serve, e.g. vllm@0.15. Default: swiftspec."),
]
EnginePython = Annotated[
    str | None,
    typer.Option(
        "--python", metavar="PATH", help="The Python that has --engine. Default: the engine's program is in PATH."
    ),
]
ServerArgs = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="More options for --engine's servers, e.g. '--max-model-len 4096'."),
]
ApiKeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="The key to send; the first one of the file.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Run on this Ray cluster, e.g. 10.0.0.1:6379; auto is the one that this machine is in."
    ),
]
Timeline = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the timeline as JSON for ui.perfetto.dev.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .svg or .pdf.")]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write machine-readable results; - is stdout.")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]
Temperature = Annotated[float, typer.Option(help="Of the target's draws; 0 is greedy.")]
TOP_P = typer.Option(help="Sample from the most likely tokens up to this probability.")
TOP_K = typer.Option(help="Sample from this many most likely tokens; 0 is all.")
Jobs = Annotated[int, typer.Option(help="Simulation processes; -1 is one per core.")]


def settings(meaning: str) -> typer.models.OptionInfo:
    """`--set`, with what it may set."""
    option: typer.models.OptionInfo = typer.Option("--set", metavar="NAME=VALUE,..", help=meaning)
    return option
