"""Options of the verbs that check predictions against measurements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags
from swiftspec.cli.settings import SCHEDULER, listed

__all__ = ["AdviseFlags", "LoadTestFlags", "ValidateFlags"]


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

    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Plan to run and to compare with.")] = None
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts as JSON Lines, other than the traced ones.")
    ] = None
    loads: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead: measured loads, CSV or JSON of vllm bench, GuideLLM, AIPerf, inference-perf."
        ),
    ] = None
    speeds: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: CSV file of measured speeds by drafting method.")
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME[@RELEASE]", help="With --loads or --speeds: of rows without one."),
    ] = None
    leave_out: Annotated[
        Literal["none", "model", "source"],
        typer.Option(help="With --loads or --speeds: what the constants of a row are fitted without."),
    ] = "none"
    freeze: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --loads or --speeds: write predictions alone, hashed. Of a server's plan: before measuring.",
        ),
    ] = None
    policies: Annotated[str, typer.Option(metavar="all|A,B", help="Which to run; always includes the choice.")] = "all"
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Repetitions; speeds are their medians. Default: 3; of a load 1.")
    ] = None
    max_new_tokens: flags.NewTokens = None
    num_prompts: flags.NumPrompts = None
    load: flags.Load = None
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --load: send it to `swiftspec serve` of this plan.")
    ] = None
    python: flags.EnginePython = None
    api_key_file: flags.ApiKeyFile = None
    settings: Annotated[list[str] | None, flags.settings(f"With --load: {listed(SCHEDULER)}.")] = None
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

    url: Annotated[str, typer.Option(metavar="URL", help="Address of a server of OpenAI's API.")]
    load: Annotated[Path, typer.Option(metavar="FILE", help="Requests to send; `swiftspec workload` writes it.")]
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

    url: Annotated[str | None, typer.Option(metavar="URL", help="Address of a vLLM or an SGLang that runs.")] = None
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Time between the readings. Default with --url: 60; files need it."),
    ] = None
    before: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead of --url: what /metrics answered, and .. ")
    ] = None
    after: Annotated[Path | None, typer.Option(metavar="FILE", help=".. what it answered --seconds later.")] = None
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Profile of such a server, by `swiftspec profile --engine`."),
    ] = None
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of --profile: the server's device, e.g. h100.")
    ] = None
    devices: Annotated[int, typer.Option(min=1, help="With --device: devices of the server.")] = 1
    target: Annotated[str | None, typer.Option(metavar="M", help="With --device: the model that is served.")] = None
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="With --device: its draft. With either, ngram says that drafts are looked up in the text.",
        ),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="TARGET[,DRAFT]", help="With --device: formats of the weights, e.g. fp8.")
    ] = None
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME[@RELEASE]", help="With --device: the server's engine. Default: as its metrics say."),
    ] = None
    settings: Annotated[
        list[str] | None, flags.settings("The server's own limits, by its engine's words, e.g. max_num_seqs=128.")
    ] = None
    api_key_file: flags.ApiKeyFile = None
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to show (.html).")] = None
    json: flags.Json = None
