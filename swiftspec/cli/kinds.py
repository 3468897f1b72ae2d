"""`swiftspec plan --load closed:N,N,..`: kinds of drafts side by side on one target, at several loads."""

from swiftspec.api import compare_kinds as lay_out
from swiftspec.artifacts.kinds import KindComparison
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.outputs import check_outputs, write_json
from swiftspec.cli.plan_flags import compared_clients, deployment_of, parsed_jobs, price_of
from swiftspec.cli.sections import show
from swiftspec.cli.verbs.decide import PlanFlags
from swiftspec.reports.kinds import kind_sections

__all__ = ["compare_kinds"]

_PUBLISHED = "published"
_OF_A_SEARCH = ("out", "profile", "inflate", "limit", "fleet", "objective", "policy", "split")


def compare_kinds(asked: PlanFlags, target: str) -> KindComparison:
    """Compare, print and save."""
    deployment = deployment_of(asked)
    if deployment is None:
        raise ValueError(f"--load is {asked.load}; drafts are compared on other hardware only: expected --device")
    refuse(asked, _OF_A_SEARCH, f"--load {asked.load} compares drafts and makes no plan")
    check_outputs(
        inputs={"--target": asked.target, "--trace": asked.trace, "--op-tables": deployment.op_tables},
        plot=asked.plot,
        json=asked.json,
    )
    drafts, acceptance = asked.draft or [], asked.acceptance or []
    if acceptance and len(acceptance) != len(drafts):
        raise ValueError(
            f"--acceptance is given {len(acceptance)} times and --draft {len(drafts)} times; "
            f"expected one for each draft, in the same order, or {_PUBLISHED}"
        )
    rates = [None if text == _PUBLISHED else text for text in acceptance] or [None] * len(drafts)
    if twice := next((name for name in drafts if drafts.count(name) > 1), None):
        raise ValueError(f"--draft is {twice} twice; expected different ones")
    compared = lay_out(
        target,
        deployment=deployment,
        drafts=dict(zip(drafts, rates, strict=True)),
        clients=compared_clients(asked),
        trace=asked.trace,
        dataset=asked.dataset,
        seed=asked.seed,
        num_jobs=parsed_jobs(asked)[0],
        price_per_hour=price_of(asked),
        stages=console.progress,
    )
    show(kind_sections(compared), headings=True)
    if asked.plot is not None:
        from swiftspec.reports.figures import kinds_by_load, save_figure

        save_figure(asked.plot, kinds_by_load(compared))
    write_json(asked.json, compared.model_dump(mode="json"))
    return compared
