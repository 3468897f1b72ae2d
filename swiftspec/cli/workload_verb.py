"""The verb that writes a workload. It imports its module when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["workload"]


def workload(
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the workload.")],
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS",
            help="poisson:RATE, gamma:RATE:SHAPE (vLLM's burstiness), constant:RATE, in requests/s, or closed:CLIENTS. "
            "RATE may be stages: 2x600,4x300 is 2 requests/s for 600 s, then 4 for 300 s.",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of requests; with --from, the first N. Default: those of the stages."
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(metavar="LENGTHS", help="fixed:TOKENS, uniform:LEAST:MOST or lognormal:MEAN:CV."),
    ] = None,
    output_tokens: Annotated[str | None, typer.Option(metavar="LENGTHS", help="As --prompt-tokens.")] = None,
    system_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="All prompts begin with the same N tokens, before those of --prompt-tokens, as the prefix of vllm "
            "bench serve's prefix_repetition and the system_prompt_len of inference-perf's shared_prefix.",
        ),
    ] = None,
    system_prompts: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --system-prompt-tokens: N different ones, in turn. Default: 1."),
    ] = None,
    distinct_prompts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Send N different prompts in turn, again and again.")
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Conversations of N requests. Each prompt is the text so far, answers included, and the new tokens of "
            "--prompt-tokens; --arrivals are those of conversations.",
        ),
    ] = None,
    think_time_s: Annotated[
        float | None, typer.Option(min=0.0, metavar="S", help="With --turns: from an answer's end to the next turn.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Name prompts of this file, JSON lines with `prompt`; needs --tokenizer."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="M", help="Model that counts the tokens of --prompts: a directory.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Name prompts of this acceptance trace, with its outputs.")
    ] = None,
    source: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            "--from", metavar="FORMAT FILE", help="Replay a load trace: azure, burstgpt, mooncake or adaserve."
        ),
    ] = None,
    start_s: Annotated[
        float | None, typer.Option(metavar="S", help="With --from: where to start, after the first row.")
    ] = None,
    duration_s: Annotated[float | None, typer.Option(metavar="S", help="With --from: how much to take.")] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="RATE", help="With --from: stretch the time axis to these requests/s.")
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME[:LIMITS]",
            help="Class of requests, such as chat:ttft=500,tpot=50,share=0.3, with limits in ms; may be repeated.",
        ),
    ] = None,
    seed: flags.Seed = 0,
    json: flags.Json = None,
) -> None:
    """Write a workload: many requests, generated or replayed.

    It has arrival times, lengths and latency limits, but no text. Open processes have exactly the given rate: their
    gaps are stretched to add up to requests/rate, as those of `vllm bench serve` are.

    \b
    Examples:
      swiftspec workload --arrivals poisson:2 --requests 500 --prompt-tokens lognormal:200:0.5 \\
          --output-tokens fixed:96 --class interactive:ttft=500,tpot=50 --out workload.json
      swiftspec workload --arrivals poisson:0.5 --requests 1000 --turns 5 --think-time-s 10 \\
          --system-prompt-tokens 1000 --prompt-tokens fixed:100 --output-tokens fixed:200 --out chats.json
      swiftspec workload --from azure AzureLLMInferenceTrace_conv.csv --duration-s 600 --rate 2 \\
          --out workload.json --json -
    """
    from swiftspec.cli.workload import Drawing, Replaying
    from swiftspec.cli.workload import workload as write

    write(
        drawing=Drawing(
            arrivals=arrivals,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prompts=prompts,
            tokenizer=tokenizer,
            trace=trace,
            system_prompt_tokens=system_prompt_tokens,
            system_prompts=system_prompts,
            distinct_prompts=distinct_prompts,
            turns=turns,
            think_time_s=think_time_s,
        ),
        replaying=Replaying(source, start_s, duration_s, rate),
        requests=requests,
        classes=classes or (),
        seed=seed,
        out=out,
        json_path=json,
    )
