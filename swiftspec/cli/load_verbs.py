"""Verbs about one request or many at once. Each imports its module when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["kinds", "simulate"]


def simulate(
    *,
    plan: flags.PlanFile,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    max_new_tokens: flags.NewTokens = None,
    earlier_outputs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Suffix decoding: search the last N outputs, too, and say what they are worth. Default: as planned.",
        ),
    ] = None,
    workload: flags.ServedRequests = None,
    max_running: flags.MaxRunning = None,
    max_waiting: flags.MaxWaiting = None,
    kv_blocks: flags.KvBlocks = None,
    prefill_tokens: flags.PrefillTokens = None,
    gather_ms: flags.GatherMs = None,
    control: flags.Control = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[@RELEASE]", help="With --workload: serve as this engine does: vllm, sglang or trtllm."
        ),
    ] = None,
    settings: flags.Set = None,
    replay: Annotated[
        bool | None,
        typer.Option(
            "--replay/--full",
            help="With --workload: replay recorded rounds, or grow every tree. Default: replay, but for up to 1000 "
            "requests whose draft has devices of its own.",
        ),
    ] = None,
    timeline: flags.Timeline = None,
    seed: flags.Seed = 0,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Replay a plan in simulated time, alone or under load.

    \b
    Examples:
      swiftspec simulate --plan plan.json --timeline simulated.json
      swiftspec simulate --plan plan.json --json - | jq .metrics.tpot_s
      swiftspec simulate --plan plan.json --workload workload.json --max-running 16
    """
    from swiftspec.cli.load_limits import refuse_limits

    limits = {
        "--max-running": max_running,
        "--max-waiting": max_waiting,
        "--kv-blocks": kv_blocks,
        "--prefill-tokens": prefill_tokens,
        "--gather-ms": gather_ms,
        "--control": control,
        "--replay": replay,
    }
    if workload is not None:
        from swiftspec.cli.deployment import parse_settings
        from swiftspec.cli.simulate_load import simulate_load

        simulate_load(
            plan=plan,
            workload=workload,
            policy=policy,
            limits=limits,
            engine=engine,
            settings=parse_settings(settings or ""),
            max_new_tokens=max_new_tokens,
            earlier_outputs=earlier_outputs,
            seed=seed,
            timeline=timeline,
            plot=plot,
            json_path=json,
        )
        return
    refuse_limits(limits | {"--engine": engine, "--set": settings})
    from swiftspec.cli.simulate import simulate as simulate_alone

    simulate_alone(
        plan=plan,
        policy=policy,
        max_new_tokens=max_new_tokens,
        earlier_outputs=earlier_outputs,
        seed=seed,
        timeline=timeline,
        plot=plot,
        json_path=json,
    )


def kinds(
    *,
    target: Annotated[str, typer.Option(metavar="M", help="Target: a name, or a directory.")],
    device: Annotated[
        str,
        typer.Option(metavar="NAME", help="Compare on this device, e.g. h100: see `swiftspec list devices`."),
    ],
    devices: Annotated[int, typer.Option(min=1, help="Number of devices, all of which are used.")] = 8,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M",
            help="Draft, repeated for several: a name or directory, pard:NAME for a parallel one, or a head: eagle3, "
            "mtp, p-eagle, dflash, dspark. Default: the smallest model, the same as a parallel draft, and all heads.",
        ),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(metavar="RATE", help="One for each --draft, as for plan; `published` leaves it as it is."),
    ] = None,
    clients: Annotated[str, typer.Option(metavar="N,N,..", help="Loads: requests that decode together.")] = "1,4,16,64",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recorded trace with text like yours, for suffix decoding.")
    ] = None,
    quant: flags.Quant = None,
    draft_quant: flags.DraftQuant = None,
    engine: flags.Engine = None,
    settings: flags.Set = None,
    host_ms: flags.HostTime = None,
    expert_correlation: flags.ExpertCorrelation = None,
    op_tables: flags.OpTables = None,
    context: flags.Context = None,
    output_tokens: flags.OutputTokens = None,
    dataset: flags.Dataset = None,
    seed: flags.Seed = 0,
    jobs: flags.Jobs = -1,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Compare kinds of drafts on one target at several loads.

    None, suffix decoding, a draft model (beside the target, and on its own devices), a parallel draft, EAGLE-3, MTP and
    block drafters: speed, best K, where the time goes, and up to which load each pays.

    \b
    Examples:
      swiftspec kinds --target llama-3.3-70b --device h100 --devices 8 --quant fp8
      swiftspec kinds --target qwen3-32b --device h100 --devices 2 --draft eagle3 --draft qwen3-0.6b \\
          --clients 1,8,32 --plot kinds.svg
      swiftspec kinds --target gpt-oss-120b --device h100 --engine vllm@0.15 --set max_num_seqs=256 \\
          --clients 1,8,32,128
    """
    from swiftspec.cli.deployment import named_deployment
    from swiftspec.cli.kinds import compare_kinds

    deployment = named_deployment(
        device,
        num_devices=devices,
        quant=quant,
        draft_quant=draft_quant,
        engine=engine,
        settings=settings,
        host_ms=host_ms,
        context=context,
        output_tokens=output_tokens,
        expert_correlation=expert_correlation,
        op_tables=op_tables,
    )
    assert deployment is not None, "a device is named"
    compare_kinds(
        deployment,
        target=target,
        drafts=draft or (),
        acceptance=acceptance or (),
        clients=clients,
        trace=trace,
        dataset=dataset,
        seed=seed,
        jobs=jobs,
        plot=plot,
        json_path=json,
    )
