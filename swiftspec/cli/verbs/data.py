"""Options of the verbs about data: requests to serve, what other tools measured, and names that are known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags
from swiftspec.cli.flags import flag, option
from swiftspec.cli.settings import CONDITIONS, DRAWN, REPLAYED, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFlags:
    """Write a workload: many requests, generated or replayed.

    It has arrival times, lengths and latency limits, but no text. Open processes have exactly the given rate: their
    gaps are stretched to add up to requests/rate, as those of `vllm bench serve` are.

    \b
    Examples:
      swiftspec workload --arrivals poisson:2 --requests 500 --prompt-tokens lognormal:200:0.5 \\
          --output-tokens fixed:96 --class interactive:ttft=500,tpot=50 --out workload.json
      swiftspec workload --arrivals poisson:0.5 --requests 1000 --prompt-tokens fixed:100 --output-tokens fixed:200 \\
          --set turns=5,think_time_s=10,system_prompt_tokens=1000 --out chats.json
      swiftspec workload --from azure AzureLLMInferenceTrace_conv.csv --set duration_s=600,rate=2 \\
          --out workload.json --json -
    """

    out: Annotated[Path, option("FILE", "Where to write the workload.")]
    arrivals: str | None = flag(
        "PROCESS",
        "poisson:RATE, gamma:RATE:SHAPE (vLLM's burstiness), constant:RATE, in requests/s, or closed:CLIENTS. "
        "RATE may be stages: 2x600,4x300 is 2 requests/s for 600 s, then 4 for 300 s.",
    )
    requests: int | None = flag(
        "N", "Number of requests; with --from, the first N. Default: those of the stages.", min=1
    )
    prompt_tokens: str | None = flag("LENGTHS", "fixed:TOKENS, uniform:LEAST:MOST or lognormal:MEAN:CV.")
    output_tokens: str | None = flag("LENGTHS", "As --prompt-tokens.")
    prompts: Path | None = flag("FILE", "Name prompts of this file, JSON lines with `prompt`; needs --tokenizer.")
    tokenizer: str | None = flag("M", "Model that counts the tokens of --prompts: a directory.")
    trace: Path | None = flag("FILE", "Name prompts of this acceptance trace, with its outputs.")
    source: tuple[str, Path] | None = flag(
        "FORMAT FILE", "Replay a load trace: azure, burstgpt, mooncake or adaserve.", "--from"
    )
    classes: list[str] | None = flag(
        "NAME[:LIMITS]",
        "Class of requests, such as chat:ttft=500,tpot=50,share=0.3, with limits in ms; may be repeated.",
        "--class",
    )
    settings: list[str] | None = flags.settings(f"{listed(DRAWN)}. With --from: {listed(REPLAYED)}.")
    seed: flags.Seed = 0
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFlags:
    """Turn what other tools measured into files to plan with.

    Acceptance by position, for `swiftspec plan --acceptance`, or times of single operations, for its `--op-tables`: a
    folder of gemm.csv, attention.csv, all_reduce.csv and elementwise.csv, one row per measurement.

    \b
    Examples:
      swiftspec import --from metrics.txt --target qwen3-32b --drafter qwen3-1.7b \\
          --set dataset=GSM8K,temperature=0 --out acceptance.json
      swiftspec import --from serve.log --target qwen3-32b --set kind=eagle3 --out acceptance.json
      swiftspec import --from aiconfigurator --device h200-sxm --out h200.npz
    """

    source: Annotated[
        str,
        option(
            "FILE|DIR|aiconfigurator",
            "Acceptance: metrics, a log or answers of vLLM, SGLang or llama.cpp, results of vllm bench serve, or "
            "a trace. Op tables: a folder of CSV files, or the installed package.",
            "--from",
        ),
    ]
    out: Annotated[Path, option("FILE", "Where to write op tables (.npz), or acceptance (.json).")]
    device: str | None = flag("NAME", "Of op tables: the device whose rows to take, e.g. h200-sxm.")
    target: str | None = flag("M", "Of acceptance: the target. Default: the file's.")
    drafter: str | None = flag("M", "Drafter: a draft model or a head. Default: the trace's.")
    settings: list[str] | None = flags.settings(f"Of acceptance: {listed(CONDITIONS)}.")
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlags:
    """List the models, devices, policies or engines known by name.

    Policies of other installed packages are among them. For any other model of these architectures, give a directory
    with its config.json.

    \b
    Example:
      swiftspec list models --json models.json
    """

    what: Annotated[
        Literal["models", "devices", "policies", "engines"], typer.Argument(metavar="WHAT", help="What to list.")
    ]
    json: flags.Json = None
