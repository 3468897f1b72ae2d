"""Verbs that check predictions against measurements."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags
from swiftspec.cli.settings import SCHEDULER, listed

__all__ = ["loadtest", "validate"]


def validate(
    *,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Plan to run and to compare with.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts as JSON Lines, other than the traced ones.")
    ] = None,
    loads: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead: measured loads, CSV or JSON of vllm bench, GuideLLM, AIPerf, inference-perf."
        ),
    ] = None,
    speeds: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: CSV file of measured speeds by drafting method.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME[@RELEASE]", help="With --loads or --speeds: of rows without one."),
    ] = None,
    leave_out: Annotated[
        Literal["none", "model", "source"],
        typer.Option(help="With --loads or --speeds: what the constants of a row are fitted without."),
    ] = "none",
    freeze: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --loads or --speeds: write predictions alone, hashed."),
    ] = None,
    policies: Annotated[str, typer.Option(metavar="all|A,B", help="Which to run; always includes the choice.")] = "all",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Repetitions; speeds are their medians. Default: 3; of a load 1.")
    ] = None,
    max_new_tokens: flags.NewTokens = None,
    num_prompts: flags.NumPrompts = None,
    load: flags.Load = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --load: send it to `swiftspec serve` of this plan.")
    ] = None,
    api_key_file: flags.ApiKeyFile = None,
    settings: Annotated[list[str] | None, flags.settings(f"With --load: {listed(SCHEDULER)}.")] = None,
    control: flags.Control = None,
    seed: flags.Seed = 0,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Compare predicted with measured: of a plan, or in files.

    \b
    Examples:
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --json report.json
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --load workload.json
      swiftspec validate --loads measured.csv --engine vllm@0.15 --leave-out model
    """
    if loads is not None or speeds is not None:
        from swiftspec.cli.validate_published import validate_published

        if plan is not None or prompts is not None:
            raise ValueError(f"--plan and --prompts are of a plan; with {loads or speeds} expected neither")
        validate_published(
            loads=loads, speeds=speeds, engine=engine, leave_out=leave_out, freeze=freeze, plot=plot, json_path=json
        )
        return
    if plan is None or prompts is None:
        missing = "--plan" if plan is None else "--prompts"
        raise ValueError(f"{missing} is missing; expected a plan and prompts, --loads or --speeds")
    if engine is not None or freeze is not None or leave_out != "none":
        raise ValueError("--engine, --leave-out and --freeze are only for --loads and --speeds")
    from swiftspec.cli.limits import refuse_limits
    from swiftspec.cli.settings import own_settings

    limits = {**own_settings(settings, SCHEDULER), "control": control}
    if load is not None:
        from swiftspec.cli.validate_load import validate_load

        validate_load(
            plan=plan,
            load=load,
            prompts=prompts,
            policies=policies,
            refused={"--repeats": repeats, "--max-new-tokens": max_new_tokens},
            limits=limits,
            limit=num_prompts,
            seed=seed,
            url=url,
            api_key_file=api_key_file,
            plot=plot,
            json_path=json,
        )
        return
    if url is not None:
        raise ValueError(f"--url is {url}; it is only for --load")
    refuse_limits(limits)
    from swiftspec.cli.validate import validate as compare

    compare(
        plan=plan,
        prompts=prompts,
        policies=policies,
        repeats=3 if repeats is None else repeats,
        max_new_tokens=max_new_tokens,
        limit=num_prompts,
        plot=plot,
        json_path=json,
    )


def loadtest(
    *,
    url: Annotated[str, typer.Option(metavar="URL", help="Address of a server of OpenAI's API.")],
    load: Annotated[Path, typer.Option(metavar="FILE", help="Requests to send; `swiftspec workload` writes it.")],
    prompts: flags.Prompts,
    api_key_file: flags.ApiKeyFile = None,
    num_prompts: flags.NumPrompts = None,
    seed: flags.Seed = 0,
    json: flags.Json = None,
) -> None:
    """Send a load to a server, and measure what its clients see.

    Works with `swiftspec serve` and with vLLM. Requests are greedy, and as long as the load says.

    \b
    Example:
      swiftspec loadtest --url http://127.0.0.1:8000 --load workload.json --prompts prompts.jsonl \\
          --json loadtest.json
    """
    from swiftspec.cli.load_test import load_test

    load_test(
        url=url,
        load=load,
        prompts=prompts,
        api_key_file=api_key_file,
        limit=num_prompts,
        seed=seed,
        json_path=json,
    )
