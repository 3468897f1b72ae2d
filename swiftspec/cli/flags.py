"""Flags of verbs: how one is declared, and those that several verbs share, so that they read the same everywhere."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import typer

OPTION = "option"  # key of a field's metadata


def option(metavar: str, meaning: str, *names: str, **limits: Any) -> Any:
    """What typer knows of a flag. names: if it is not called as its field. limits: of its value, `min` and `max`."""
    return typer.Option(*names, metavar=metavar or None, help=meaning, **limits)


def flag(metavar: str, meaning: str, *names: str, default: Any = None, **limits: Any) -> Any:
    """A field of a verb's options that may be left out; arguments as of `option`."""
    return field(default=default, metadata={OPTION: option(metavar, meaning, *names, **limits)})


def settings(meaning: str) -> Any:
    """`--set`, with what it may set."""
    return flag("NAME=VALUE,..", meaning, "--set")


Target = Annotated[str, option("M", "Target: a Hugging Face directory, or demo/target.")]
Draft = Annotated[str, option("M", "Draft: a Hugging Face directory, or demo/draft.")]
Inflate = Annotated[
    str | None, option("SHAPE", "Expand the target to this shape when loading it, e.g. layers=24,hidden=1024.")
]
SaveInflated = Annotated[
    Path | None, option("DIR", "With --inflate: also write the expanded target, which has the same output.")
]
Dtype = Annotated[
    str,
    option(
        "",
        "float32 (fp32: exact, a bf16 checkpoint still takes two bytes a weight), bfloat16 (bf16); on CPUs also "
        "int8 (lossy), on GPUs float16, fp8 and int4. auto: bfloat16 on a GPU; on a CPU the faster of fp32 and bf16, "
        "measured for each model. TARGET,DRAFT: one for each.",
    ),
]
PlanFile = Annotated[Path, option("FILE", "A plan, as `swiftspec plan` wrote it.")]
PolicyName = Annotated[str | None, option("NAME", "One of the plan's alternatives.")]
Prompts = Annotated[Path, option("FILE", "JSON lines with `prompt`, or Spec-Bench `turns`.")]
NumPrompts = Annotated[int | None, option("N", "Use at most this many prompts, spread over the file.", min=1)]
NewTokens = Annotated[int | None, option("", "Output tokens per prompt, at most. Default: the plan's.", min=1)]
Load = Annotated[
    str | None,
    option("FILE|PROCESS", "Serve these requests: a file of `swiftspec workload`, or closed:CLIENTS or poisson:RATE."),
]
Engine = Annotated[
    str | None, option("NAME[@RELEASE]", "The engine that will serve, e.g. vllm@0.15. Default: swiftspec.")
]
EnginePython = Annotated[
    str | None, option("PATH", "The Python that has --engine. Default: the engine's program is in PATH.", "--python")
]
ServerArgs = Annotated[str | None, option("TEXT", "More options for --engine's servers, e.g. '--max-model-len 4096'.")]
ApiKeyFile = Annotated[Path | None, option("FILE", "The key to send; the first one of the file.")]
Ray = Annotated[
    str | None,
    option("ADDRESS", "Run on this Ray cluster, e.g. 10.0.0.1:6379; auto is the one that this machine is in."),
]
Timeline = Annotated[Path | None, option("FILE", "Write the timeline as JSON for ui.perfetto.dev.")]
Plot = Annotated[Path | None, option("FILE", "Draw a figure: .png, .svg or .pdf.")]
Json = Annotated[Path | None, option("FILE", "Write machine-readable results; - is stdout.", "--json")]
Seed = Annotated[int, option("", "The same seed gives the same result.", min=0)]
Temperature = Annotated[float, option("", "Of the target's draws; 0 is greedy.")]
Jobs = Annotated[int, option("", "Simulation processes; -1 is one per core.")]
TOP_P = "Sample from the most likely tokens up to this probability."
TOP_K = "Sample from this many most likely tokens; 0 is all."
