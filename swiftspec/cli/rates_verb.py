"""`swiftspec rates` as the command line declares it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags

__all__ = ["rates"]


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
