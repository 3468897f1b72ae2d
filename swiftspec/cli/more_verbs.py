"""Less common verbs of the command line. Each imports its module when it is called."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags, list_verb
from swiftspec.cli.exchange_verbs import export, import_tables, rates
from swiftspec.cli.load_verbs import kinds
from swiftspec.cli.server_verbs import loadtest, serve
from swiftspec.cli.verb_groups import CHECK, DATA, DECIDE, MORE, USE
from swiftspec.cli.workload_verb import workload

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command line."""
    groups = {
        USE: (serve, export, secret),
        CHECK: (validate, loadtest),
        DECIDE: (compare, kinds, report),
        DATA: (workload, rates, tenants, inflate),
        MORE: (demo,),
    }
    for group, verbs in groups.items():
        for verb in verbs:
            app.command(rich_help_panel=group)(verb)
    app.command("import", rich_help_panel=DATA)(import_tables)
    list_verb.register(app)


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
        int | None, typer.Option(min=1, help="Repetitions; speeds are their medians. Default: 3; of a workload 1.")
    ] = None,
    max_new_tokens: flags.NewTokens = None,
    limit: flags.Limit = None,
    workload: flags.ServedRequests = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --workload: send it to `swiftspec serve` of this plan.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --url: the key to send; the first one of the file.")
    ] = None,
    max_running: flags.MaxRunning = None,
    max_waiting: flags.MaxWaiting = None,
    kv_blocks: flags.KvBlocks = None,
    prefill_tokens: flags.PrefillTokens = None,
    gather_ms: flags.GatherMs = None,
    control: flags.Control = None,
    seed: flags.Seed = 0,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Compare predicted with measured: of a plan, or in files.

    \b
    Examples:
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --json report.json
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --workload workload.json
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
    from swiftspec.cli.load_limits import refuse_limits

    limits = {
        "--max-running": max_running,
        "--max-waiting": max_waiting,
        "--kv-blocks": kv_blocks,
        "--prefill-tokens": prefill_tokens,
        "--gather-ms": gather_ms,
        "--control": control,
    }
    if workload is not None:
        from swiftspec.cli.validate_load import validate_load

        validate_load(
            plan=plan,
            workload=workload,
            prompts=prompts,
            policies=policies,
            refused={"--repeats": repeats, "--max-new-tokens": max_new_tokens},
            limits=limits,
            limit=limit,
            seed=seed,
            url=url,
            api_key_file=api_key_file,
            plot=plot,
            json_path=json,
        )
        return
    if url is not None:
        raise ValueError(f"--url is {url}; it is only for --workload")
    refuse_limits(limits)
    from swiftspec.cli.validate import validate as compare

    compare(
        plan=plan,
        prompts=prompts,
        policies=policies,
        repeats=3 if repeats is None else repeats,
        max_new_tokens=max_new_tokens,
        limit=limit,
        plot=plot,
        json_path=json,
    )


def report(
    *,
    plan: flags.PlanFile,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the report: one HTML file.")],
    json: flags.Json = None,
) -> None:
    """Write the report of an existing plan, as plan --report does.

    The profile and the trace that the plan was made from must still be where they were.

    \b
    Example:
      swiftspec report --plan plan.json --out plan.html
    """
    from swiftspec.cli.page import report as write

    write(plan=plan, out=out, json_path=json)


def compare(
    *,
    target: flags.Target,
    draft: flags.Draft,
    profile: flags.ProfileFile,
    trace: flags.TraceFile,
    devices: Annotated[int | None, typer.Option(min=1, help="Default: the profile's.")] = None,
    inflate: flags.Inflate = None,
    dtype: flags.ProfileDtype = None,
    policies: Annotated[
        str, typer.Option(metavar="all|A,B", help="Which to show; always includes the choice.")
    ] = "all",
    ranks: flags.Ranks = None,
    run: Annotated[bool, typer.Option("--run", help="Also measure them, on --prompts.")] = False,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompts for --run: JSON lines.")] = None,
    repeats: flags.Repeats = 3,
    limit: flags.Limit = None,
    seed: flags.Seed = 0,
    jobs: flags.Jobs = -1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan of all policies.")] = None,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Compare every policy at its best with the others.

    \b
    Example:
      swiftspec compare --target demo/target --draft demo/draft --inflate layers=48 \\
          --profile profile.json --trace trace.npz --run --prompts other-prompts.jsonl
    """
    from swiftspec.cli.compare import compare as play
    from swiftspec.cli.compare import measuring

    play(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        profile=profile,
        trace=trace,
        devices=devices,
        policies=policies,
        ranks=ranks,
        seed=seed,
        jobs=jobs,
        measuring=measuring(prompts, repeats=repeats, limit=limit) if run else None,
        out=out,
        plot=plot,
        json_path=json,
    )


def tenants(
    *,
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR DIR ..", help="Hugging Face directories, the base first, and LoRA adapters of the base."
        ),
    ],
    memory_gib: Annotated[
        float | None, typer.Option(min=0.001, metavar="G", help="Say how many such tenants fit in G GiB.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a request. Default: the model's, at most 4096.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests of each tenant at once.")] = 8,
    kv_dtype: Annotated[
        Literal["bf16", "fp16", "fp32"], typer.Option(help="Of keys and values: what the engine computes in.")
    ] = "bf16",
    near: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, metavar="COSINE", help="What if layers as near to the base's were taken for equal: lossy."
        ),
    ] = None,
    json: flags.Json = None,
) -> None:
    """Layers that fine-tunes of a model share, and their memory.

    Weights are equal if all their bytes are; equal ones are needed once.

    \b
    Example:
      swiftspec tenants base fine-tune-a fine-tune-b adapter --memory-gib 80 --context 2048
    """
    from swiftspec.cli.tenants import Asked
    from swiftspec.cli.tenants import tenants as compare_weights

    compare_weights(
        directories=directories,
        asked=Asked(context, max_running, kv_dtype, memory_gib, near),
        json_path=json,
    )


def inflate(
    *,
    target: flags.Target,
    inflate: Annotated[str, typer.Option(metavar="SHAPE", help="Target shape, e.g. layers=24,hidden=1024.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the Hugging Face directory.")],
    dtype: Annotated[str, typer.Option(help="float32 (fp32) or bfloat16 (bf16).")] = "float32",
    seed: flags.Seed = 0,
    json: flags.Json = None,
) -> None:
    """Write a larger model with exactly the small one's output.

    \b
    Example:
      swiftspec inflate --target demo/target --inflate layers=24,hidden=1024 --out inflated
    """
    from swiftspec.cli.inflate import inflate as write

    write(target=target, inflate=inflate, dtype=dtype, out=out, seed=seed, json_path=json)


def demo(
    *,
    directory: flags.Directory = Path("swiftspec-demo"),
    inflate: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="The bundled target's shape. Default: what fits the budget.")
    ] = None,
    dtype: flags.Dtype = "auto",
    devices: Annotated[int | None, typer.Option(min=1, help="Cores. Default: two, if there are.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Repetitions of the validation. Default: up to 3, as time allows.")
    ] = None,
    budget_minutes: Annotated[
        float, typer.Option(min=1, metavar="MIN", help="Time limit; the size of everything is chosen to fit it.")
    ] = 8.0,
    plot: Annotated[bool, typer.Option("--plot", help="Also draw figures, in the same folder.")] = False,
    json: flags.Json = None,
) -> None:
    """Do all of this on the bundled pair, in a few minutes.

    It times the machine first and does as much as fits the budget. It reports what it left out, how long everything
    took, and whether the machine was busy.

    \b
    Examples:
      swiftspec demo --dir swiftspec-demo --plot
      swiftspec demo --budget-minutes 3
    """
    from swiftspec.cli.demo import demo as show

    show(
        directory=directory,
        inflate=inflate,
        dtype=dtype,
        devices=devices,
        repeats=repeats,
        budget_minutes=budget_minutes,
        plot=plot,
        json_path=json,
    )


def secret(
    *, out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it, readable by you alone.")]
) -> None:
    """Make a secret for torchrun's processes, for `run --secret`.

    Every machine needs a copy that only its user can read.

    \b
    Example:
      swiftspec secret --out swiftspec.secret
    """
    from swiftspec.cli.nodes import secret as write

    write(out=out)
