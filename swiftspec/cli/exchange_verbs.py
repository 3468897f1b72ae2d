"""The verbs that exchange files with other tools, as the command line shows them: flags and help only."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags

__all__ = ["export", "import_tables", "rates"]


def export(
    *,
    plan: flags.PlanFile,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose command, e.g. vllm or llamacpp. Default: the plan's engine."),
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Let the engine imitate the traced acceptance, without draft weights.")
    ] = False,
    max_running: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Requests at once, with draft tokens by batch size. Default: as planned."
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="M", help="The draft's checkpoint, if the plan names none, e.g. of a head.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the command as a shell script.")] = None,
    json: flags.Json = None,
) -> None:
    """Write a plan as another engine's command line.

    Lists what that engine cannot express, and exports the nearest plan that it can.

    \b
    Examples:
      swiftspec export --plan plan.json --engine vllm
      swiftspec export --plan plan.json --engine sglang --synthetic --out serve.sh
    """
    from swiftspec.cli.export import export as write

    write(
        plan=plan,
        engine=engine,
        policy=policy,
        synthetic=synthetic,
        max_running=max_running,
        draft=draft,
        out=out,
        json_path=json,
    )


def import_tables(
    *,
    source: Annotated[
        str,
        typer.Option("--from", metavar="aiconfigurator|DIR", help="The installed package, or a folder of CSV files."),
    ],
    device: Annotated[str, typer.Option(help="Device whose rows to take: h100-sxm, h200-sxm, ...")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the op tables (.npz).")],
    json: flags.Json = None,
) -> None:
    """Turn other people's op measurements into tables to plan with.

    A folder holds gemm.csv, attention.csv, all_reduce.csv and elementwise.csv, one row per measurement.

    \b
    Example:
      swiftspec import --from aiconfigurator --device h200-sxm --out h200.npz
    """
    from swiftspec.cli.importing import import_tables as read

    read(source=source, device=device, out=out, json_path=json)


def rates(
    *,
    vllm_metrics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The answer of vLLM's /metrics: rates by position.")
    ] = None,
    sglang_metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The answer of SGLang's /metrics: a mean length; needs --num-draft-tokens."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A trace of `swiftspec trace`: rates of chains along it.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="M", help="Target. Default with --trace: the trace's; otherwise required.")
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(metavar="M", help="Drafter: a draft model or a head. As --target.")
    ] = None,
    kind: Annotated[
        Literal["serial", "parallel", "head", "block"] | None,
        typer.Option(
            help="Kind of drafter: a draft model (serial), one that guesses several at once (parallel, as PARD), "
            "EAGLE-3 or MTP (head), DFlash or DSpark (block). Default: serial; with --trace the trace's."
        ),
    ] = None,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=64, metavar="K", help="Tokens of a chain. Default with --trace: 8; vLLM counts it."),
    ] = None,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="Data set that was served.")] = "",
    temperature: Annotated[float | None, typer.Option(min=0, help="Temperature. Default with --trace: 0.")] = None,
    thinking: Annotated[bool | None, typer.Option(help="Whether the target was thinking.")] = None,
    context: Annotated[int | None, typer.Option(min=1, metavar="N", help="Prompt tokens.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the record (.json).")],
    json: flags.Json = None,
) -> None:
    """Import acceptance by position from counters or a trace.

    A record of what a server counted, or of chains along a trace, for `swiftspec plan --acceptance`.

    \b
    Example:
      swiftspec rates --vllm-metrics metrics.txt --target qwen3-32b --drafter qwen3-1.7b \\
          --dataset GSM8K --temperature 0 --out acceptance.json
    """
    from swiftspec.cli.rates import Conditions, read_acceptance

    read_acceptance(
        vllm_metrics=vllm_metrics,
        sglang_metrics=sglang_metrics,
        trace=trace,
        num_draft_tokens=num_draft_tokens,
        conditions=Conditions(
            target=target,
            drafter=drafter,
            kind=kind,
            dataset=dataset,
            temperature=temperature,
            thinking=thinking,
            context=context,
        ),
        out=out,
        json_path=json,
    )
