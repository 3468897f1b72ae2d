"""Options of the verbs that check predictions against measurements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from swiftspec.cli import flags
from swiftspec.cli.flags import flag, option
from swiftspec.cli.settings import SCHEDULER, listed


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
