"""Options of `swiftspec study latency`."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags


def latency(
    *,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it; optional with --url.")
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    num_draft_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="K,K,..", help="Simulate these numbers of draft tokens instead of the plan's, e.g. 1,2,4."
        ),
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Requests; their arrivals are replaced.")
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(metavar="LENGTHS", help="As for `workload`, instead of it. Default: fixed:128."),
    ] = None,
    output_tokens: Annotated[str | None, typer.Option(metavar="LENGTHS", help="As --prompt-tokens.")] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=32, metavar="N", help="Requests of a run, at high rates. Default: 400, or 100 measured ones."),
    ] = None,
    max_running: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Requests at once, and clients at saturation. Default: 8.")
    ] = None,
    kv_blocks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Blocks of 16 tokens in the target's cache.")
    ] = None,
    prefill_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Prompt tokens of a step. Default: 32 on CPUs, 128 elsewhere."),
    ] = None,
    gather_ms: Annotated[
        float | None, typer.Option(min=0.0, metavar="MS", help="A verification's wait for the others'.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How much is drafted and verified under load: fixed:K, goodput, goodput-per-request, worth, slo, or "
            "none: all that the policy asks for. Default: as planned.",
        ),
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also measure, on an engine of this machine.")] = False,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Also measure, on this server, which runs the policy.")
    ] = None,
    plain_url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --url: a server of the same target without speculation.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --url: the key to send; the first one of the file.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts to measure with: JSON lines with `prompt`.")
    ] = None,
    num_prompts: flags.NumPrompts = None,
    experts: Annotated[
        int | None, typer.Option(min=1, metavar="M", help="Experts of a layer of a sparse target.")
    ] = None,
    active: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Experts that compute one of its tokens.")
    ] = None,
    seed: flags.Seed = 0,
    jobs: flags.Jobs = -1,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Latency over loads, and up to which load speculation pays.

    The same requests are served one by one, by as many clients as may run at once, and at eight rates between, by the
    policy and by plain decoding. To the mean latencies it fits L = C1 / (1 - RPS C2).

    \b
    Examples:
      swiftspec study latency --plan plan.json --policy serial_chain --max-running 32 --plot sweep.png
      swiftspec study latency --plan plan.json --policy serial_chain --num-draft-tokens 1,2,4,8
      swiftspec study latency --plan plan.json --policy serial_chain --measure --prompts prompts.jsonl
    """
    from swiftspec.studies.latency_law.command import Drawn, Measured, Sparse
    from swiftspec.studies.latency_law.command import sweep as run

    run(
        plan=plan,
        policy=policy,
        num_draft_tokens=num_draft_tokens,
        drawn=Drawn(workload, prompt_tokens, output_tokens, requests),
        measured=Measured(measure, url, plain_url, api_key_file, prompts, num_prompts),
        sparse=Sparse(experts, active),
        limits={
            "max_running": max_running,
            "kv_blocks": kv_blocks,
            "prefill_tokens": prefill_tokens,
            "gather_ms": gather_ms,
            "control": control,
        },
        seed=seed,
        jobs=jobs,
        plot=plot,
        json_path=json,
    )
