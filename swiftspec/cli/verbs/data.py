"""Options of the verbs about data, measured here or by others, and of those that check predictions by them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags
from swiftspec.cli.flags import flag, option
from swiftspec.cli.settings import CONDITIONS, DRAWN, REPLAYED, SCHEDULER, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFlags:
    """Measure what forwards and messages cost on this machine.

    With --engine: of that engine's servers, from outside. They are started here, asked, and ended.

    \b
    Examples:
      swiftspec profile --target demo/target --draft demo/draft --inflate layers=12,hidden=512 --out profile.json
      swiftspec profile --engine vllm --target llama-8b/ --draft llama-1b/ --device cuda --out vllm.json
      swiftspec profile --url http://127.0.0.1:8000 --target llama-8b/ --draft llama-1b/ --device cuda --out vllm.json
    """

    target: flags.Target
    draft: flags.Draft
    out: Annotated[Path, option("FILE", "Where to write the profile.")]
    inflate: flags.Inflate = None
    save_inflated: flags.SaveInflated = None
    device: str = flag("cpu|cuda", "What to measure on.", default="cpu")
    devices: int | None = flag("", "Number of GPUs, or of CPU cores. Default: all.", min=1)
    dtype: flags.Dtype = "auto"
    ranks: int = flag("N", "On a CPU, also measure models divided by N processes.", default=1, min=1)
    max_sequences: int = flag("N", "Also measure steps that up to N requests share.", default=1, min=1)
    engine: flags.Engine = None
    url: str | None = flag("URL", "Measure the server that runs there.")
    api_key_file: flags.ApiKeyFile = None
    python: flags.EnginePython = None
    server_args: flags.ServerArgs = None
    minutes: float | None = flag(
        "N", "Measure no longer, so less of slow models. Default: 10, of a server 15; on GPUs 5 and 6.", min=1
    )
    starts: int = flag(
        "", "With --engine: servers that are started: plain, with a draft, with ngram.", default=3, min=1, max=3
    )
    ops: Path | None = flag("FILE", "Also time single operations (.npz).")
    accept_noise: bool = flag("", "Save a GPU's profile even if its times are noisy.", "--accept-noise", default=False)
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFlags:
    """Record how the draft ranks the target's own output.

    An inflated target has the same output as the small one, so one trace serves for both. With slow models, no prompt
    begins after ten minutes, unless --num-prompts says how many to trace.

    \b
    Example:
      swiftspec trace --target demo/target --draft demo/draft --prompts prompts.jsonl --out trace.npz
    """

    target: flags.Target
    draft: flags.Draft
    prompts: flags.Prompts
    out: Annotated[Path, option("FILE", "Where to write the trace (.npz).")]
    inflate: flags.Inflate = None
    save_inflated: flags.SaveInflated = None
    dtype: flags.Dtype = "auto"
    max_new_tokens: int = flag("", "Output tokens per prompt, at most.", default=128, min=1)
    num_prompts: flags.NumPrompts = None
    temperature: flags.Temperature = 0.0
    top_p: float = flag("", flags.TOP_P, default=1.0)
    top_k: int = flag("", flags.TOP_K, default=0)
    seed: flags.Seed = 0
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InflateFlags:
    """Write a larger model with exactly the small one's output, as profile and trace do with --save-inflated."""

    target: flags.Target
    inflate: Annotated[str, option("SHAPE", "Target shape, e.g. layers=24,hidden=1024.")]
    out: Annotated[Path, option("DIR", "Where to write the Hugging Face directory.")]
    dtype: str = flag("", "float32 (fp32) or bfloat16 (bf16).", default="float32")
    seed: flags.Seed = 0
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateFlags:
    """Compare predicted with measured: of a plan, or in files.

    A plan's policies are measured for ten minutes at most, unless --num-prompts or --repeats says how much to measure.

    \b
    Examples:
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --json report.json
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --load workload.json
      swiftspec validate --loads measured.csv --engine vllm@0.15 --leave-out model
    """

    plan: Path | None = flag("FILE", "Plan to run and to compare with.")
    prompts: Path | None = flag("FILE", "Prompts as JSON Lines, other than the traced ones.")
    loads: Path | None = flag(
        "FILE", "Instead: measured loads, CSV or JSON of vllm bench, GuideLLM, AIPerf, inference-perf."
    )
    speeds: Path | None = flag("FILE", "Instead: CSV file of measured speeds by drafting method.")
    engine: str | None = flag("NAME[@RELEASE]", "With --loads or --speeds: of rows without one.")
    leave_out: Literal["none", "model", "source"] = flag(
        "", "With --loads or --speeds: what the constants of a row are fitted without.", default="none"
    )
    freeze: Path | None = flag(
        "FILE", "With --loads or --speeds: write predictions alone, hashed. Of a server's plan: before measuring."
    )
    policies: str = flag("all|A,B", "Which to run; always includes the choice.", default="all")
    repeats: int | None = flag("", "Repetitions; speeds are their medians. Default: 3; of a load 1.", min=1)
    max_new_tokens: flags.NewTokens = None
    num_prompts: flags.NumPrompts = None
    load: flags.Load = None
    url: str | None = flag("URL", "With --load: send it to `swiftspec serve` of this plan.")
    python: flags.EnginePython = None
    api_key_file: flags.ApiKeyFile = None
    settings: list[str] | None = flags.settings(f"With --load: {listed(SCHEDULER)}.")
    seed: flags.Seed = 0
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestFlags:
    """Send a load to a server, and measure what its clients see.

    Works with `swiftspec serve` and with vLLM. Requests are greedy, and as long as the load says.

    \b
    Example:
      swiftspec loadtest --url http://127.0.0.1:8000 --load workload.json --prompts prompts.jsonl \\
          --json loadtest.json
    """

    url: Annotated[str, option("URL", "Address of a server of OpenAI's API.")]
    load: Annotated[Path, option("FILE", "Requests to send; `swiftspec workload` writes it.")]
    prompts: flags.Prompts
    api_key_file: flags.ApiKeyFile = None
    num_prompts: flags.NumPrompts = None
    seed: flags.Seed = 0
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseFlags:
    """Say what to change in a server that runs, and what that brings.

    Reads its metrics twice, under its own load, and fits a model of the server to them: a profile of such a server, or
    a device by name. "Leave it as it is" and "not enough evidence" are answers, too.

    \b
    Examples:
      swiftspec advise --url http://127.0.0.1:8000 --seconds 300 --profile vllm.json --report advice.html
      swiftspec advise --before 10h.txt --after 11h.txt --seconds 3600 --device h100 --engine vllm@0.15 \\
          --target llama-3.1-8b --draft eagle3 --set max_num_seqs=128
    """

    url: str | None = flag("URL", "Address of a vLLM or an SGLang that runs.")
    seconds: float | None = flag("S", "Time between the readings. Default with --url: 60; files need it.")
    before: Path | None = flag("FILE", "Instead of --url: what /metrics answered, and .. ")
    after: Path | None = flag("FILE", ".. what it answered --seconds later.")
    profile: Path | None = flag("FILE", "Profile of such a server, by `swiftspec profile --engine`.")
    device: str | None = flag("NAME", "Instead of --profile: the server's device, e.g. h100.")
    devices: int = flag("", "With --device: devices of the server.", default=1, min=1)
    target: str | None = flag("M", "With --device: the model that is served.")
    draft: str | None = flag(
        "M", "With --device: its draft. With either, ngram says that drafts are looked up in the text."
    )
    dtype: str | None = flag("TARGET[,DRAFT]", "With --device: formats of the weights, e.g. fp8.")
    engine: str | None = flag("NAME[@RELEASE]", "With --device: the server's engine. Default: as its metrics say.")
    settings: list[str] | None = flags.settings(
        "The server's own limits, by its engine's words, e.g. max_num_seqs=128."
    )
    api_key_file: flags.ApiKeyFile = None
    report: Path | None = flag("FILE", "Write a page to show (.html).")
    json: flags.Json = None


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
