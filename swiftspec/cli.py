"""The command line: verbs, flags, exit codes. Every verb imports its module when it is called, so that help is quick.

Exit codes: 0, 2 for a mistake of the user's (one sentence on stderr), 130 for Ctrl-C, 1 for a pipe whose reader has
gone. Anything else is our bug and comes with a traceback.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from swiftspec import __version__, console
from swiftspec.commands import options

__all__ = ["app", "main"]

_TRACEBACK = "SWIFTSPEC_TRACEBACK"

app = typer.Typer(
    name="swiftspec",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code."""
    try:
        code = app(args=arguments, prog_name="swiftspec", standalone_mode=False)
    except typer.TyperException as error:
        console.error(error.format_message())
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except (ValueError, OSError) as error:
        if os.environ.get(_TRACEBACK):
            raise
        console.error(error)
        return 2
    return _interrupted() if code == 130 else code or 0


def _interrupted() -> int:
    console.note("swiftspec: interrupted")
    return 130


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

    \b
    Example:
      swiftspec demo
    """
    if context.invoked_subcommand is None:
        console.say(context.get_help())


@app.command()
def profile(
    *,
    target: options.Target,
    draft: options.Draft,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the profile.")],
    inflate: options.Inflate = None,
    device: Annotated[str, typer.Option(help="What to measure on.")] = "cpu",
    devices: Annotated[int | None, typer.Option(min=1, help="How many; on a CPU, cores. All if not given.")] = None,
    dtype: options.Dtype = "auto",
    plot: options.Plot = None,
    json: options.Json = None,
) -> None:
    """Measure what forwards and messages cost on this machine.

    \b
    Example:
      swiftspec profile --target demo/target --draft demo/draft --inflate layers=12,hidden=512 --out profile.json
    """
    from swiftspec.commands.profile import profile as measure

    measure(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        device=device,
        devices=devices,
        out=out,
        plot=plot,
        json_path=json,
    )


@app.command()
def trace(
    *,
    target: options.Target,
    draft: options.Draft,
    prompts: options.Prompts,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the trace (.npz).")],
    inflate: options.Inflate = None,
    dtype: options.Dtype = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Output tokens per prompt, at most.")] = 128,
    plot: options.Plot = None,
    json: options.Json = None,
) -> None:
    """Record how the draft ranks the target's own output.

    An inflated target says what the small one says, so a trace of the small one serves for both.

    \b
    Example:
      swiftspec trace --target demo/target --draft demo/draft --prompts prompts.jsonl --out trace.npz
    """
    from swiftspec.commands.trace import trace as record

    record(
        target=target,
        draft=draft,
        prompts=prompts,
        inflate=inflate,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        out=out,
        plot=plot,
        json_path=json,
    )


@app.command()
def plan(
    *,
    target: options.Target,
    draft: options.Draft,
    profile: options.ProfileFile,
    trace: options.TraceFile,
    devices: Annotated[int, typer.Option(min=1, help="How many devices there are to place the pair on.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the plan.")],
    inflate: options.Inflate = None,
    dtype: options.ProfileDtype = None,
    policy: Annotated[str, typer.Option(metavar="auto|NAME", help="Search all policies, or one.")] = "auto",
    seed: options.Seed = 0,
    jobs: options.Jobs = -1,
    json: options.Json = None,
) -> None:
    """Choose policy, tree shape and split, and say what to expect.

    \b
    Example:
      swiftspec plan --target demo/target --draft demo/draft --inflate layers=12,hidden=512 \\
          --profile profile.json --trace trace.npz --devices 2 --out plan.json
    """
    from swiftspec.commands.plan import plan as search

    search(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        profile=profile,
        trace=trace,
        devices=devices,
        policy=policy,
        seed=seed,
        jobs=jobs,
        out=out,
        json_path=json,
    )


@app.command()
def simulate(
    *,
    plan: options.PlanFile,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    max_new_tokens: options.NewTokens = None,
    timeline: options.Timeline = None,
    seed: options.Seed = 0,
    plot: options.Plot = None,
    json: options.Json = None,
) -> None:
    """Replay a plan on its traced prompts in simulated time.

    \b
    Example:
      swiftspec simulate --plan plan.json --timeline simulated.json
    """
    from swiftspec.commands.simulate import simulate as replay

    replay(
        plan=plan,
        policy=policy,
        max_new_tokens=max_new_tokens,
        seed=seed,
        timeline=timeline,
        plot=plot,
        json_path=json,
    )


@app.command()
def run(
    *,
    plan: options.PlanFile,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="A text to continue.")] = None,
    prompts: options.PromptFile = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    max_new_tokens: options.NewTokens = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest tokens of this total probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample among so many likeliest tokens; 0 is all.")] = 0,
    seed: options.Seed = 0,
    acceptance_method: options.AcceptanceMethod = "follow",
    timeline: options.Timeline = None,
    plot: options.Plot = None,
    json: options.Json = None,
) -> None:
    """Execute a plan. Text goes to stdout as it is committed, figures to stderr.

    \b
    Example:
      swiftspec run --plan plan.json --prompt "def main():" --timeline run.json
    """
    from swiftspec.commands.run import run as execute

    execute(
        plan=plan,
        prompt=prompt,
        prompts=prompts,
        policy=policy,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        acceptance_method=acceptance_method,
        timeline=timeline,
        plot=plot,
        json_path=json,
    )


@app.command()
def validate(
    *,
    plan: options.PlanFile,
    prompts: options.Prompts,
    policies: Annotated[str, typer.Option(metavar="all|A,B", help="Which; the chosen one always is.")] = "all",
    repeats: options.Repeats = 3,
    max_new_tokens: options.NewTokens = None,
    limit: options.Limit = None,
    plot: options.Plot = None,
    json: options.Json = None,
) -> None:
    """Run a plan's policies; lay predicted beside measured.

    \b
    Example:
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --json report.json
    """
    from swiftspec.commands.validate import validate as compare

    compare(
        plan=plan,
        prompts=prompts,
        policies=policies,
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        limit=limit,
        plot=plot,
        json_path=json,
    )


@app.command()
def compare(
    *,
    target: options.Target,
    draft: options.Draft,
    profile: options.ProfileFile,
    trace: options.TraceFile,
    devices: Annotated[int | None, typer.Option(min=1, help="Those of the profile if not given.")] = None,
    inflate: options.Inflate = None,
    dtype: options.ProfileDtype = None,
    policies: Annotated[str, typer.Option(metavar="all|A,B", help="Which; the plan's choice always is.")] = "all",
    run: Annotated[bool, typer.Option("--run", help="Measure them too, on --prompts.")] = False,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines, for --run.")] = None,
    repeats: options.Repeats = 3,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    jobs: options.Jobs = -1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan of them all.")] = None,
    plot: options.Plot = None,
    json: options.Json = None,
) -> None:
    """Lay every policy at its best beside the others.

    \b
    Example:
      swiftspec compare --target demo/target --draft demo/draft --inflate layers=48 \\
          --profile profile.json --trace trace.npz --run --prompts other-prompts.jsonl
    """
    from swiftspec.commands.compare import Measuring
    from swiftspec.commands.compare import compare as play

    if run and prompts is None:
        raise ValueError("--run is given without --prompts; it needs texts to measure on")
    play(
        target=target,
        draft=draft,
        inflate=inflate,
        dtype=dtype,
        profile=profile,
        trace=trace,
        devices=devices,
        policies=policies,
        seed=seed,
        jobs=jobs,
        measuring=Measuring(prompts=prompts, repeats=repeats, limit=limit) if run and prompts else None,
        out=out,
        plot=plot,
        json_path=json,
    )


@app.command()
def inflate(
    *,
    target: options.Target,
    inflate: Annotated[str, typer.Option(metavar="SHAPE", help="As layers=24,hidden=1024.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the Hugging Face directory.")],
    dtype: Annotated[str, typer.Option(help="float32 (fp32) or bfloat16 (bf16).")] = "float32",
    seed: options.Seed = 0,
    json: options.Json = None,
) -> None:
    """Write a larger model that says exactly what the small one says.

    \b
    Example:
      swiftspec inflate --target demo/target --inflate layers=24,hidden=1024 --out inflated
    """
    from swiftspec.commands.inflate import inflate as write

    write(target=target, inflate=inflate, dtype=dtype, out=out, seed=seed, json_path=json)


@app.command()
def demo(
    *,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the files go.")] = Path(
        "swiftspec-demo"
    ),
    inflate: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="The bundled target's shape; a realistic one if not given.")
    ] = None,
    dtype: options.Dtype = "auto",
    devices: Annotated[int | None, typer.Option(min=1, help="Cores; two, or what there is, if not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of the validation.")] = 3,
    plot: Annotated[bool, typer.Option("--plot", help="Draw figures beside the files.")] = False,
    json: options.Json = None,
) -> None:
    """Do all of this on the bundled pair, in a few minutes.

    \b
    Example:
      swiftspec demo --dir swiftspec-demo --plot
    """
    from swiftspec.commands.demo import demo as show

    show(
        directory=directory,
        inflate=inflate,
        dtype=dtype,
        devices=devices,
        repeats=repeats,
        plot=plot,
        json_path=json,
    )


if __name__ == "__main__":
    sys.exit(main())
