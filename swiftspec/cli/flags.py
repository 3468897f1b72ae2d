"""Flags that several verbs share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "Acceptance",
    "AcceptanceMethod",
    "Backend",
    "Context",
    "Control",
    "Dataset",
    "Degrees",
    "DeviceName",
    "Directory",
    "Draft",
    "DraftKvBudget",
    "DraftQuant",
    "Drafts",
    "Dtype",
    "Engine",
    "ExpertCorrelation",
    "ExpertParallel",
    "FleetSize",
    "GatherMs",
    "Inflate",
    "Jobs",
    "Json",
    "KvBlocks",
    "Limit",
    "LoadRequests",
    "MaxDevices",
    "MaxRunning",
    "MaxTpot",
    "MaxTtft",
    "MaxWaiting",
    "MinSpeed",
    "NewTokens",
    "ObjectiveName",
    "OpTables",
    "OutputTokens",
    "Percentile",
    "PlanFile",
    "PlanOut",
    "Plot",
    "PrefillTokens",
    "Price",
    "ProfileDtype",
    "ProfileFile",
    "PromptFile",
    "Prompts",
    "Quant",
    "Ranks",
    "Ray",
    "Repeats",
    "ReportPage",
    "Secret",
    "Seed",
    "ServedRequests",
    "ServingRole",
    "Set",
    "Split",
    "Target",
    "Timeline",
    "TpotLimit",
    "TraceFile",
    "TransferMs",
    "TtftLimit",
    "WorkloadFile",
]

Target = Annotated[str, typer.Option(metavar="M", help="Target: a Hugging Face directory, or demo/target.")]
Drafts = Annotated[
    list[str] | None,
    typer.Option("--draft", metavar="M", help="Draft: as for the target. With --device, repeat it to compare several."),
]
Draft = Annotated[str, typer.Option(metavar="M", help="Draft: a Hugging Face directory, or demo/draft.")]
Inflate = Annotated[
    str | None,
    typer.Option(metavar="SHAPE", help="Expand the target to this shape when loading it, e.g. layers=24,hidden=1024."),
]
Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder for the files.")]
Dtype = Annotated[
    str,
    typer.Option(
        help="float32 (fp32: exact, a bf16 checkpoint still takes two bytes a weight), bfloat16 (bf16); on CPUs also "
        "int8 (lossy), on GPUs float16, fp8 and int4. auto: bfloat16 on a GPU; on a CPU the faster of fp32 and bf16, "
        "measured for each model. TARGET,DRAFT: one for each."
    ),
]
PlanFile = Annotated[Path, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it.")]
PlanOut = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Where to write the plan. With --device, its profile and trace are saved next to X.json as X.profile.json "
        "and X.trace.npz.",
    ),
]
Prompts = Annotated[Path, typer.Option(metavar="FILE", help="JSON lines with `prompt`, or Spec-Bench `turns`.")]
PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Several prompts: JSON lines with `prompt`, or Spec-Bench `turns`.")
]
ServedRequests = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Serve these requests, from `swiftspec workload`.")
]
MaxRunning = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="With --workload: requests at once. Default: 8; with --fleet on GPUs 64."),
]
MaxWaiting = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="With --workload: refuse more waiting requests than this.")
]
KvBlocks = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --workload: blocks of 16 tokens in the target's cache.")
]
PrefillTokens = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="With --workload: prompt tokens of a step. Default: 32 on CPUs, 128 elsewhere."
    ),
]
GatherMs = Annotated[
    float | None, typer.Option(min=0.0, metavar="MS", help="With --workload: a verification's wait for the others'.")
]
Control = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How much is drafted and verified under load: fixed:K, goodput, goodput-per-request, worth, slo, or "
        "none: all that the policy asks for. Default: as planned.",
    ),
]
Timeline = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the timeline as JSON for ui.perfetto.dev.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure: .png, .svg or .pdf.")]
ReportPage = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a report of the plan: one HTML file.")
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write machine-readable results; - is stdout.")
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")]
NewTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens per prompt, at most. Default: the plan's.")]
ProfileFile = Annotated[Path, typer.Option(metavar="FILE", help="A profile of this pair.")]
TraceFile = Annotated[Path, typer.Option(metavar="FILE", help="A trace of this pair.")]
ProfileDtype = Annotated[str | None, typer.Option(help="Default: the profile's.")]
Repeats = Annotated[int, typer.Option(min=1, help="Repetitions; speeds are their medians.")]
Ranks = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Consider only groups of N processes, where N divides the group. Default: all."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many prompts, spread over the file.")]
AcceptanceMethod = Annotated[
    Literal["follow", "residual"],
    typer.Option(
        help="follow: accept a draft token if the target samples the same one. residual: rejection sampling, which "
        "accepts more at temperatures above 0; co-located policies only."
    ),
]
Jobs = Annotated[int, typer.Option(help="Simulation processes; -1 is one per core.")]
DeviceName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Plan for this device, e.g. h100 or b200: see `swiftspec list devices`."),
]
Quant = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="With --device: weight format, bf16 (default), fp8, int8, int4 or mxfp4."),
]
DraftQuant = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="With --device: the draft's weight format. Default: the target's.")
]
Degrees = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,..",
        help="TP degrees to consider, e.g. 1,2,4,8. Default: those that the engine can run.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[@RELEASE]",
        help="With --device: the engine that will serve, e.g. vllm@0.15. Default: swiftspec.",
    ),
]
HostTime = Annotated[
    float | None,
    typer.Option("--host-ms", min=0, metavar="MS", help="With --device: your own host time of a step."),
]
Set = Annotated[
    str | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE,..",
        help="With --engine, but swiftspec: limits by its own words, as max_num_batched_tokens=2048,max_num_seqs=128.",
    ),
]
Context = Annotated[int | None, typer.Option(min=1, metavar="N", help="With --device: prompt tokens. Default: 512.")]
OpTables = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --device: op tables that `swiftspec import` wrote.")
]
Dataset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --device: acceptance on this data set. Default: on all."),
]
Acceptance = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RATE",
        help="With --device: measured acceptance rate, one for each --draft. 0.75 of single draft tokens, 0.44@5 on "
        "average over chains of 5, 0.8,0.7,0.6 by position (vLLM logs both), or a file of `swiftspec rates`.",
    ),
]
DraftKvBudget = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --device: predict for a draft whose KV cache keeps N tokens. The engine has none such.",
    ),
]
ExpertParallel = Annotated[
    bool,
    typer.Option(
        "--expert-parallel", help="With --device: whole experts on each device, not a part of every one's width."
    ),
]
ExpertCorrelation = Annotated[
    float | None,
    typer.Option(
        metavar="C",
        help="With --device: 1 if consecutive tokens choose experts independently, 0 if they share them. Default: "
        "that of --trace if its target has as many experts, else 0.57, which is assumed.",
    ),
]
OutputTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --device: output tokens. Default: 256.")
]
ObjectiveName = Annotated[
    Literal["tokens-per-s", "tpot", "tpot-p95", "tokens-per-gpu", "cost", "devices"] | None,
    typer.Option(help="What to optimise. Default: tokens-per-s; with --min-tokens-per-s, devices."),
]
MinSpeed = Annotated[
    float | None, typer.Option(metavar="X", help="Lower limit on tokens/s; without --objective, on the fewest devices.")
]
MaxTpot = Annotated[float | None, typer.Option(metavar="MS", help="Upper limit on the mean TPOT.")]
MaxTtft = Annotated[float | None, typer.Option(metavar="MS", help="Upper limit on the mean TTFT.")]
MaxDevices = Annotated[int | None, typer.Option(min=1, help="Use at most this many devices.")]
Split = Annotated[
    str | None,
    typer.Option(metavar="T+D", help="Only this split: devices of the target and of the draft, 4+4, or 8 shared."),
]
Price = Annotated[
    float | None,
    typer.Option(
        metavar="P", help="Price of one device per hour, in any currency; gives the cost of a million tokens."
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(
        metavar="loky|dask|ray", help="Where simulations run: on this machine (loky), or on a running cluster."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Run on this Ray cluster, e.g. 10.0.0.1:6379; auto is the one that this machine is in."
    ),
]
Secret = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Under torchrun: secret shared by its processes, from `swiftspec secret`."),
]
WorkloadFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Plan for these requests, from `swiftspec workload`: the most requests/s within their limits (goodput).",
    ),
]
TtftLimit = Annotated[
    float | None,
    typer.Option(metavar="MS", help="With --workload: limit on each request's TTFT. Default: its class's."),
]
TpotLimit = Annotated[
    float | None,
    typer.Option(metavar="MS", help="With --workload: limit on each request's TPOT. Default: its class's."),
]
FleetSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --workload: the fewest of N devices on which equal replicas, of at most --devices each, keep the "
        "load's limits together.",
    ),
]
Percentile = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="With --workload: accept only what keeps the limits of P percent of the requests; with --fleet 95.",
    ),
]
ServingRole = Annotated[
    Literal["all", "decode"],
    typer.Option(help="With --workload and --engine: decode plans a pool whose prompts other instances read."),
]
TransferMs = Annotated[
    float | None,
    typer.Option(
        min=0.0, metavar="MS", help="With --role decode: from a prompt's end until its cache is there. Default: 0."
    ),
]
LoadRequests = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --workload: simulate the first N requests. Default: 15,000 output tokens.",
    ),
]
