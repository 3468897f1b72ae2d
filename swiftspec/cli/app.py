"""The command line: verbs, flags, exit codes. Every verb imports its module when it is called, so that help is quick.

Exit codes: 0; 2 for a mistake of the user's (one sentence on stderr); 3 if a process of the engine died; 130 for
Ctrl-C; 143 for SIGTERM; 129 for SIGHUP; 1 for a closed pipe, or a study's check that does not hold. Anything else is a
bug of ours and prints a traceback.
"""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import console, flags, load_verbs, more_verbs, study
from swiftspec.cli.field_names import in_flags
from swiftspec.cli.usage_error import usage_sentence
from swiftspec.cli.verb_groups import DECIDE, MEASURE, USE, VerbGroups
from swiftspec.engine.process.interrupts import ending_signals_raised, exit_code
from swiftspec.errors import EngineError
from swiftspec.extras import extras_named
from swiftspec.files.reading import brief
from swiftspec.version import __version__

__all__ = ["app", "main"]

_TRACEBACK = "SWIFTSPEC_TRACEBACK"
_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

app = typer.Typer(
    name="swiftspec",
    cls=VerbGroups,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. While it runs, SIGTERM and SIGHUP end it as Ctrl-C does."""
    console.begin()
    if sys.stdout is None:
        console.error("stdout is closed; expected it open, or redirected to /dev/null")
        return 2
    with ending_signals_raised(), console.warnings_shown("swiftspec"):
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with extras_named(needed_by="this command"):
            code = app(args=arguments, prog_name="swiftspec", standalone_mode=False)
    except typer.TyperException as error:
        console.error(usage_sentence(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except (ValueError, OSError, EngineError, ImportError, MemoryError) as error:
        if os.environ.get(_TRACEBACK):
            raise
        console.error(_sentence(error))
        return 2 if isinstance(error, ValueError | OSError) else 3
    return _interrupted() if code == 130 else code or int(console.reader_has_gone())


def _sentence(error: Exception) -> object:
    """The error's message, naming the file or stream if there is one."""
    if isinstance(error, ValueError):
        return in_flags(str(error))
    if isinstance(error, ImportError | MemoryError):  # the first is a library's that does not fit into memory
        return f"out of memory, or a library cannot be loaded ({brief(error) or type(error).__name__})"
    if not isinstance(error, OSError):
        return error
    if error.filename is None and error.errno in _WRITING:
        # Every other output's error names its file; that of the parser's help does not.
        console.abandon_stdout()
        return f"stdout: cannot be written ({error.strerror})"
    return f"{error.filename}: {error.strerror}" if error.filename else error


def _interrupted() -> int:
    console.note("swiftspec: interrupted")
    return exit_code()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.say(f"swiftspec {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Plan, run and validate low-latency LLM decoding.

    profile -> trace -> plan -> run -> validate. Each writes a file for the next; every number says what it rests on.
    An output file named - is stdout; messages then go to stderr.

    \b
    Example:
      swiftspec demo
    """
    if context.invoked_subcommand is None:
        console.say(context.get_help())


@app.command(rich_help_panel=MEASURE)
def profile(
    *,
    target: flags.Target,
    draft: flags.Draft,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")],
    inflate: flags.Inflate = None,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="What to measure on.")] = "cpu",
    devices: Annotated[int | None, typer.Option(min=1, help="Number of GPUs, or of CPU cores. Default: all.")] = None,
    dtype: flags.Dtype = "auto",
    ranks: Annotated[
        int, typer.Option(min=1, metavar="N", help="On a CPU, also measure models divided by N processes.")
    ] = 1,
    max_sequences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Also measure steps that up to N requests share.")
    ] = 1,
    ops: Annotated[Path | None, typer.Option(metavar="FILE", help="Also time single operations (.npz).")] = None,
    accept_noise: Annotated[
        bool, typer.Option("--accept-noise", help="Save a GPU's profile even if its times are noisy.")
    ] = False,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Measure what forwards and messages cost on this machine.

    \b
    Example:
      swiftspec profile --target demo/target --draft demo/draft --inflate layers=12,hidden=512 --out profile.json
    """
    from swiftspec.cli.profile import profile as measure

    measure(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        device=device,
        devices=devices,
        out=out,
        ranks=ranks,
        max_sequences=max_sequences,
        ops=ops,
        accept_noise=accept_noise,
        plot=plot,
        json_path=json,
    )


@app.command(rich_help_panel=MEASURE)
def trace(
    *,
    target: flags.Target,
    draft: flags.Draft,
    prompts: flags.Prompts,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the trace (.npz).")],
    inflate: flags.Inflate = None,
    dtype: flags.Dtype = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt, at most.")] = 128,
    limit: flags.Limit = None,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Record how the draft ranks the target's own output.

    An inflated target has the same output as the small one, so one trace serves for both.

    \b
    Example:
      swiftspec trace --target demo/target --draft demo/draft --prompts prompts.jsonl --out trace.npz
    """
    from swiftspec.cli.trace import trace as record

    record(
        target=target,
        draft=draft,
        prompts=prompts,
        inflate=inflate,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        out=out,
        limit=limit,
        plot=plot,
        json_path=json,
    )


@app.command(rich_help_panel=DECIDE)
def plan(
    *,
    target: Annotated[str, typer.Option(metavar="M", help="Target: a directory or, with --device, a name.")],
    out: flags.PlanOut,
    draft: flags.Drafts = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="A profile of this machine.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="A trace of this pair.")] = None,
    device: flags.DeviceName = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices for the pair. Default: those profiled; with --device, 8.")
    ] = None,
    quant: flags.Quant = None,
    draft_quant: flags.DraftQuant = None,
    engine: flags.Engine = None,
    op_tables: flags.OpTables = None,
    context: flags.Context = None,
    output_tokens: flags.OutputTokens = None,
    draft_kv_budget: flags.DraftKvBudget = None,
    expert_parallel: flags.ExpertParallel = False,
    expert_correlation: flags.ExpertCorrelation = None,
    dataset: flags.Dataset = None,
    acceptance: flags.Acceptance = None,
    objective: flags.ObjectiveName = None,
    min_tokens_per_s: flags.MinSpeed = None,
    max_tpot_ms: flags.MaxTpot = None,
    max_ttft_ms: flags.MaxTtft = None,
    max_gpus: flags.MaxDevices = None,
    split: flags.Split = None,
    price_per_hour: flags.Price = None,
    workload: flags.WorkloadFile = None,
    fleet: flags.FleetSize = None,
    ttft_ms: flags.TtftLimit = None,
    tpot_ms: flags.TpotLimit = None,
    percentile: flags.Percentile = None,
    load_requests: flags.LoadRequests = None,
    max_running: flags.MaxRunning = None,
    role: flags.ServingRole = "all",
    transfer_ms: flags.TransferMs = None,
    settings: flags.Set = None,
    host_ms: flags.HostTime = None,
    inflate: flags.Inflate = None,
    dtype: flags.ProfileDtype = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="auto|NAME", help="Search all policies (auto), or one, compared with autoregressive only."
        ),
    ] = "auto",
    ranks: flags.Ranks = None,
    degrees: flags.Degrees = None,
    seed: flags.Seed = 0,
    jobs: flags.Jobs = -1,
    backend: flags.Backend = None,
    report: flags.ReportPage = None,
    json: flags.Json = None,
) -> None:
    """Choose policy, tree shape and split, and predict the speed.

    For this machine, give a profile and a trace; for other hardware, its name and those of the models.

    \b
    Examples:
      swiftspec plan --target demo/target --draft demo/draft --inflate layers=12,hidden=512 \\
          --profile profile.json --trace trace.npz --devices 2 --out plan.json
      swiftspec plan --target llama-3-70b --draft llama-3.2-3b --device h800-sxm --devices 8 \\
          --quant int4 --out plan.json --report plan.html
      swiftspec plan --target llama-3-70b --draft llama-3.2-1b --draft llama-3.2-3b --device h100 \\
          --min-tokens-per-s 200 --price-per-hour 2.5 --out plan.json
      swiftspec plan --target llama-3-70b --draft llama-3.2-1b --device h800 --devices 8 \\
          --workload workload.json --ttft-ms 500 --tpot-ms 8 --percentile 95 --out plan.json
      swiftspec plan --target llama-3-70b --draft llama-3.2-1b --device h100 --fleet 64 \\
          --workload workload.json --ttft-ms 500 --tpot-ms 30 --price-per-hour 2.5 --out fleet.json
    """
    from swiftspec.cli.deployment import named_deployment
    from swiftspec.cli.goal import make_goal
    from swiftspec.cli.load_goal import make_load
    from swiftspec.cli.plan import parse_degrees
    from swiftspec.cli.plan import plan as search
    from swiftspec.planner.options import SearchOptions

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
        draft_kv_budget=draft_kv_budget,
        expert_parallel=expert_parallel,
        expert_correlation=expert_correlation,
        op_tables=op_tables,
    )
    goal = make_goal(
        objective,
        min_tokens_per_s=min_tokens_per_s,
        max_tpot_ms=max_tpot_ms,
        max_ttft_ms=max_ttft_ms,
        max_gpus=max_gpus,
        split=split,
        price_per_hour=price_per_hour,
    )
    load = make_load(
        workload,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        percentile=percentile,
        most_requests=load_requests,
        max_running=max_running,
        fleet=fleet,
        device=device,
        role=role,
        transfer_ms=transfer_ms,
    )
    search(
        target=target,
        drafts=draft or (),
        inflate=inflate,
        dtype=dtype,
        profile=profile,
        trace=trace,
        devices=devices,
        deployment=deployment,
        dataset=dataset,
        acceptance=acceptance or (),
        options=SearchOptions(
            policy=None if policy == "auto" else policy,
            goal=goal,
            ranks=ranks,
            degrees=parse_degrees(degrees),
            seed=seed,
            num_jobs=jobs,
            backend=backend,
            load=load,
            fleet=fleet,
        ),
        out=out,
        report=report,
        json_path=json,
    )


app.command(rich_help_panel=DECIDE)(load_verbs.simulate)


@app.command(rich_help_panel=USE)
def run(
    *,
    plan: flags.PlanFile,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="A text to continue.")] = None,
    prompts: flags.PromptFile = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    max_new_tokens: flags.NewTokens = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the most likely tokens up to this probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many most likely tokens; 0 is all.")] = 0,
    seed: flags.Seed = 0,
    tenant: Annotated[
        str | None, typer.Option(metavar="DIR", help="Decode with this fine-tune or LoRA adapter of the target.")
    ] = None,
    acceptance_method: flags.AcceptanceMethod = "follow",
    ray: flags.Ray = None,
    secret: flags.Secret = None,
    timeline: flags.Timeline = None,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Execute a plan. Text goes to stdout as it is committed, figures to stderr.

    \b
    Example:
      swiftspec run --plan plan.json --prompt "def main():" --timeline run.json
    """
    from swiftspec.cli.nodes import NodeOptions
    from swiftspec.cli.run import run as execute

    execute(
        nodes=NodeOptions(ray, secret),
        plan=plan,
        prompt=prompt,
        prompts=prompts,
        policy=policy,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        tenant=tenant,
        acceptance_method=acceptance_method,
        timeline=timeline,
        plot=plot,
        json_path=json,
    )


more_verbs.register(app)
study.register(app)
