"""Verbs beside the stages' own: more of the command line, kept here for length. Each imports its module when called."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command line, in the order of its help."""
    for verb in (validate, report, models, devices, policies, compare, inflate, demo):
        app.command()(verb)
    app.command("import")(import_tables)
    app.command()(backtest)
    app.command()(secret)


def validate(
    *,
    plan: flags.PlanFile,
    prompts: flags.Prompts,
    policies: Annotated[str, typer.Option(metavar="all|A,B", help="Which; the chosen one always is.")] = "all",
    repeats: flags.Repeats = 3,
    max_new_tokens: flags.NewTokens = None,
    limit: flags.Limit = None,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Run a plan's policies; lay predicted beside measured.

    \b
    Example:
      swiftspec validate --plan plan.json --prompts other-prompts.jsonl --json report.json
    """
    from swiftspec.cli.validate import validate as compare

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


def report(
    *,
    plan: flags.PlanFile,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the page: one HTML file.")],
    json: flags.Json = None,
) -> None:
    """Write the page of an existing plan, as plan --report does.

    The profile and the trace that the plan was made from have to be where they were.

    \b
    Example:
      swiftspec report --plan plan.json --out plan.html
    """
    from swiftspec.cli.page import report as write

    write(plan=plan, out=out, json_path=json)


def models(*, json: flags.Json = None) -> None:
    """List the models that can be planned for by name.

    Any other model of these architectures can be named by a directory with its config.json.

    \b
    Example:
      swiftspec models --json models.json
    """
    from swiftspec.cli.listing import list_models

    list_models(json_path=json)


def devices(*, json: flags.Json = None) -> None:
    """List the devices that can be planned for by name.

    \b
    Example:
      swiftspec devices --json devices.json
    """
    from swiftspec.cli.listing import list_devices

    list_devices(json_path=json)


def policies(*, json: flags.Json = None) -> None:
    """List the policies, those of other installed packages included.

    \b
    Example:
      swiftspec policies --json policies.json
    """
    from swiftspec.cli.listing import list_policies

    list_policies(json_path=json)


def compare(
    *,
    target: flags.Target,
    draft: flags.Draft,
    profile: flags.ProfileFile,
    trace: flags.TraceFile,
    devices: Annotated[int | None, typer.Option(min=1, help="Those of the profile if not given.")] = None,
    inflate: flags.Inflate = None,
    dtype: flags.ProfileDtype = None,
    policies: Annotated[str, typer.Option(metavar="all|A,B", help="Which; the plan's choice always is.")] = "all",
    ranks: flags.Ranks = None,
    run: Annotated[bool, typer.Option("--run", help="Measure them too, on --prompts.")] = False,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines, for --run.")] = None,
    repeats: flags.Repeats = 3,
    limit: flags.Limit = None,
    seed: flags.Seed = 0,
    jobs: flags.Jobs = -1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan of them all.")] = None,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Lay every policy at its best beside the others.

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


def inflate(
    *,
    target: flags.Target,
    inflate: Annotated[str, typer.Option(metavar="SHAPE", help="As layers=24,hidden=1024.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the Hugging Face directory.")],
    dtype: Annotated[str, typer.Option(help="float32 (fp32) or bfloat16 (bf16).")] = "float32",
    seed: flags.Seed = 0,
    json: flags.Json = None,
) -> None:
    """Write a larger model that says exactly what the small one says.

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
        str | None, typer.Option(metavar="SHAPE", help="The bundled target's shape; as fits the budget if not given.")
    ] = None,
    dtype: flags.Dtype = "auto",
    devices: Annotated[int | None, typer.Option(min=1, help="Cores; two, or what there is, if not given.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Repetitions of the validation; at most 3, as fits, if not given.")
    ] = None,
    budget_minutes: Annotated[
        float, typer.Option(min=1, metavar="MIN", help="How long it may take, by which everything else is chosen.")
    ] = 8.0,
    plot: Annotated[bool, typer.Option("--plot", help="Draw figures beside the files.")] = False,
    json: flags.Json = None,
) -> None:
    """Do all of this on the bundled pair, in a few minutes.

    It looks at the machine first, and does as much as fits the budget: it says what it leaves out, and at the end how
    long everything took and whether the machine was busy meanwhile.

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


def import_tables(
    *,
    source: Annotated[
        str,
        typer.Option("--from", metavar="aiconfigurator|DIR", help="The installed package, or a folder of CSV files."),
    ],
    device: Annotated[str, typer.Option(help="Whose rows: h100-sxm, h200-sxm, ...")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the op tables (.npz).")],
    json: flags.Json = None,
) -> None:
    """Turn measured operations of others into tables to plan with.

    A folder holds gemm.csv, attention.csv, all_reduce.csv and elementwise.csv, a row per measurement.

    \b
    Example:
      swiftspec import --from aiconfigurator --device h200-sxm --out h200.npz
    """
    from swiftspec.cli.importing import import_tables as read

    read(source=source, device=device, out=out, json_path=json)


def backtest(
    *,
    e2e: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Predict the serving points of this CSV file instead.")
    ] = None,
    jobs: flags.Jobs = -1,
    plot: flags.Plot = None,
    json: flags.Json = None,
) -> None:
    """Predict published results from published inputs; show errors.

    \b
    Example:
      swiftspec backtest --json backtest.json
    """
    from swiftspec.cli.backtest import backtest as predict

    predict(e2e=e2e, jobs=jobs, plot=plot, json_path=json)


def secret(*, out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it, for you alone.")]) -> None:
    """Make a secret that several nodes share, for `run --secret`. Every node needs a copy that only its user can read.

    \b
    Example:
      swiftspec secret --out swiftspec.secret
    """
    from swiftspec.cli.nodes import secret as write

    write(out=out)
