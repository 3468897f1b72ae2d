"""Flags that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "Acceptance",
    "AcceptanceMethod",
    "Backend",
    "Context",
    "Dataset",
    "Degrees",
    "DeviceName",
    "Directory",
    "Draft",
    "DraftQuant",
    "Drafts",
    "Dtype",
    "Engine",
    "Inflate",
    "Jobs",
    "Json",
    "Limit",
    "MaxDevices",
    "MaxTpot",
    "MaxTtft",
    "MinSpeed",
    "NewTokens",
    "NodeRank",
    "NumNodes",
    "ObjectiveName",
    "OpTables",
    "OutputTokens",
    "PlanFile",
    "PlanOut",
    "Plot",
    "Price",
    "ProfileDtype",
    "ProfileFile",
    "PromptFile",
    "Prompts",
    "Quant",
    "Ranks",
    "Rendezvous",
    "RendezvousTimeout",
    "Repeats",
    "ReportPage",
    "Secret",
    "Seed",
    "Split",
    "Target",
    "Timeline",
    "TraceFile",
]

Target = Annotated[str, typer.Option(metavar="M", help="Target: a Hugging Face directory, or demo/target.")]
Drafts = Annotated[
    list[str] | None,
    typer.Option("--draft", metavar="M", help="Draft, as the target. With --device, several may be compared."),
]
Draft = Annotated[str, typer.Option(metavar="M", help="Draft: a Hugging Face directory, or demo/draft.")]
Inflate = Annotated[
    str | None,
    typer.Option(metavar="SHAPE", help="Expand the target to this shape at load, as layers=24,hidden=1024."),
]
Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto (the faster one, measured), float32 (fp32) or bfloat16 (bf16); on GPUs also float16, fp8 and int4."
    ),
]
PlanFile = Annotated[Path, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it.")]
PlanOut = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Where to write the plan; with --device, profile and trace are written beside X.json as X.profile.json "
        "and X.trace.npz.",
    ),
]
Prompts = Annotated[Path, typer.Option(metavar="FILE", help="JSON lines with `prompt`, or Spec-Bench `turns`.")]
PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Many: JSON lines with `prompt`, or Spec-Bench `turns`.")
]
Timeline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the timeline as JSON that ui.perfetto.dev opens.")
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .svg or .pdf.")]
ReportPage = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write the plan as a page: one HTML file.")
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write machine-readable results; - is stdout.")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]
NewTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens per prompt at most; else the plan's.")]
ProfileFile = Annotated[Path, typer.Option(metavar="FILE", help="A profile of this pair.")]
TraceFile = Annotated[Path, typer.Option(metavar="FILE", help="A trace of this pair.")]
ProfileDtype = Annotated[str | None, typer.Option(help="The profile's if not given.")]
Repeats = Annotated[int, typer.Option(min=1, help="Repetitions; speeds are their medians.")]
Ranks = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Only groups of N processes, where N divides the group. Default: all."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many prompts, spread over the file.")]
AcceptanceMethod = Annotated[
    Literal["follow", "residual"],
    typer.Option(
        help="Accept a draft token if the target draws it too, or by both models' probabilities: more often at "
        "temperatures above 0, in co-located policies."
    ),
]
Jobs = Annotated[int, typer.Option(help="Processes that simulate; -1 for one per core.")]
DeviceName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Plan for this device, as h100 or b200; `swiftspec devices` lists them."),
]
Quant = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="With --device, of weights: bf16, fp8, int8 or int4; bf16 if not given."),
]
DraftQuant = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="With --device, of the draft's; the target's if not given.")
]
Degrees = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,..",
        help="Devices that may divide a model, as 1,2,4,8; any number if not given, or with --engine vllm, sglang or "
        "trtllm those that the engine can run.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --device, whose kernels: auto (SwiftSpec's for int4, else the tables' with little around them), "
        "swiftspec, vllm-int4, vllm, sglang, trtllm.",
    ),
]
Context = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --device, tokens of a prompt; 512 if not given.")
]
OpTables = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --device: tables that `swiftspec import` wrote.")
]
Dataset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --device: acceptance on this data set; on all if not given."),
]
Acceptance = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RATE",
        help="With --device: draft tokens that are accepted, as measured. 0.75 of single ones, 0.44@5 of chains of 5 "
        "(vLLM's average), 0.8,0.7,0.6 by position (vLLM's too). One for each --draft.",
    ),
]
OutputTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --device, tokens of an output; 256 if not given.")
]
ObjectiveName = Annotated[
    Literal["tokens-per-s", "tpot", "tpot-p95", "tokens-per-gpu", "cost", "devices"] | None,
    typer.Option(help="What to be best at; tokens-per-s if not given, and devices with --min-tokens-per-s."),
]
MinSpeed = Annotated[
    float | None, typer.Option(metavar="X", help="Only what reaches this speed; on the fewest devices that do.")
]
MaxTpot = Annotated[float | None, typer.Option(metavar="MS", help="Only what keeps the mean TPOT below this.")]
MaxTtft = Annotated[float | None, typer.Option(metavar="MS", help="Only what keeps the mean TTFT below this.")]
MaxDevices = Annotated[int | None, typer.Option(min=1, help="Only what needs so many devices at most.")]
Split = Annotated[
    str | None,
    typer.Option(metavar="T+D", help="Only so many devices of the target and the draft: 4+4, or 8 for both together."),
]
Price = Annotated[
    float | None, typer.Option(metavar="P", help="Of one device, in any currency: what a million tokens cost.")
]
Backend = Annotated[
    str | None, typer.Option(metavar="loky|dask|ray", help="Where simulations run: here, or on an existing cluster.")
]
NumNodes = Annotated[int | None, typer.Option(min=1, metavar="N", help="Machines that run this together.")]
NodeRank = Annotated[
    int | None, typer.Option(min=0, metavar="R", help="Which of them this one is; 0 takes prompts and prints.")
]
Rendezvous = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where they meet: an address and a free port of node 0.")
]
Secret = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Keeps strangers out, and is needed with --nnodes: a file that `swiftspec secret` wrote."
    ),
]
RendezvousTimeout = Annotated[float, typer.Option(metavar="S", help="Longest wait for each other, in seconds.")]
