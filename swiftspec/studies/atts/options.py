"""Options of `swiftspec study atts`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags


def atts(
    *,
    questions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines with `prompt`: texts to continue, as models see them."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Plan of the target's server, to run here.")] = None,
    draft_plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plan of the draft's server: its target is the draft.")
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The target's server, if it runs already.")] = None,
    draft_url: Annotated[str | None, typer.Option(metavar="URL", help="The draft's server, likewise.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key to send; the first one of the file.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Samples of a question. Default: 16.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="SHARE", help="Share of segments that the target takes over. Default: 0.4."),
    ] = None,
    barrier: Annotated[
        bool | None,
        typer.Option("--barrier/--async", help="Take over the worst of every turn, or whoever exceeds a threshold."),
    ] = None,
    per_question: Annotated[
        bool | None,
        typer.Option("--per-question/--marginal", help="Threshold of a question's own calibration, or of all."),
    ] = None,
    rule: Annotated[
        Literal["conformal", "share"] | None,
        typer.Option(help="conformal: the (n + 1) quantile, at most the budget. share: as the authors' code."),
    ] = None,
    turns: Annotated[int | None, typer.Option(min=1, metavar="N", help="Turns at most. Default: 15.")] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The draft's longest segment. Default: 500.")
    ] = None,
    target_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The target's longest segment. Default: 500.")
    ] = None,
    draft_calls: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests to the draft at once. Default: 16.")
    ] = None,
    target_calls: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests to the target at once. Default: 4.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Of both models. Default: 0.8.")] = None,
    end_marker: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help=r"A sample ends with the turn that has it. Default: \\boxed\{.*?\}."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the calibration scores of this run, from --json.")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate both plans instead of running them.")] = False,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --simulate: turns, lengths and scores of this run, from --json."),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTHS", help="With --simulate: of segments, such as lognormal:400:0.3. Default: longest."
        ),
    ] = None,
    num_prompts: flags.NumPrompts = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same result. Default: 0.")] = None,
    json: flags.Json = None,
) -> None:
    """Sample questions on two servers: asynchronous test-time scaling.

    Many samples of each question (ATTS): a draft's server writes segments, a target's server scores them and takes over
    the worst. Lossy, since a text is neither model's own; each of its segments is.

    \b
    Examples:
      swiftspec study atts --questions questions.jsonl --url http://127.0.0.1:8000 --draft-url http://127.0.0.1:8001 \\
          --json run.json
      swiftspec study atts --simulate --replay run.json --plan target-plan.json --draft-plan draft-plan.json --barrier
    """
    from swiftspec.studies.atts.command import Asked, Files
    from swiftspec.studies.atts.command import atts as run

    run(
        Files(
            questions=questions,
            plan=plan,
            draft_plan=draft_plan,
            url=url,
            draft_url=draft_url,
            api_key_file=api_key_file,
            calibration=calibration,
            replay=replay,
            json=json,
        ),
        Asked(
            options={
                "num_samples": samples,
                "budget": budget,
                "is_barrier": barrier,
                "is_per_question": per_question,
                "rule": rule,
                "num_turns": turns,
                "draft_tokens": draft_tokens,
                "target_tokens": target_tokens,
                "draft_calls": draft_calls,
                "target_calls": target_calls,
                "temperature": temperature,
                "end_marker": end_marker,
                "seed": seed,
            },
            is_simulated=simulate,
            lengths=lengths,
            limit=num_prompts,
        ),
    )
