"""`swiftspec export`: a plan as another engine's command line, and what that engine cannot express."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from swiftspec.artifacts.fleet import DraftLength
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import read_profile, read_trace
from swiftspec.cli import console
from swiftspec.cli.outputs import read_plan, saved, write_json
from swiftspec.cli.verbs.plans import ExportFlags
from swiftspec.engines import engine_named
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.export import Export, export_plan
from swiftspec.files.writing import write_output
from swiftspec.reports.formatting import speed

if TYPE_CHECKING:
    from swiftspec.planner.under_load.serving_engine import ServingEngine


def export(asked: ExportFlags) -> Export:
    made = read_plan(asked, asked.plan)
    engine = asked.engine or made.engine or SWIFTSPEC.name

    def lengths(num_devices: int, ranks: int, max_running: int) -> Sequence[DraftLength]:
        from swiftspec.planner.under_load.schedule import draft_schedule

        return draft_schedule(
            read_profile(made, asked.plan),
            read_trace(made, asked.plan),
            num_devices=num_devices,
            max_running=max_running,
            ranks=ranks,
            serving=_serving(made, engine),
        )

    exported = export_plan(
        made,
        engine_named(engine),
        policy=asked.policy,
        lengths=lengths,  # asked for only if they are needed
        max_running=asked.max_running,
        imitated=read_trace(made, asked.plan) if asked.synthetic else None,
        draft=asked.draft,
    )
    _show(exported)
    if asked.out is not None:
        write_output(asked.out, exported.script.encode())
        console.say(saved(asked.out))
    write_json(asked.json, exported.model_dump(mode="json"))
    return exported


def _serving(plan: Plan, engine: str) -> "ServingEngine | None":
    """The engine that a plan is exported to, where its steps can be composed: not on a CPU."""
    from swiftspec.devices import DEVICES
    from swiftspec.planner.deployment import Deployment

    if plan.device not in DEVICES:
        return None
    deployment = Deployment.of_plan(plan, engine=engine)
    return deployment.serving(*deployment.pair(plan.target.model, plan.draft.model))


def _show(exported: Export) -> None:
    title = f"{exported.full_name} {exported.version}"
    several = f"{exported.num_replicas} servers of " if exported.num_replicas > 1 else ""
    console.paragraph(f"{several}{exported.candidate} for {title}: {_predicted(exported.tokens_per_s)}")
    if exported.is_other_plan:
        planned = _predicted(exported.planned_tokens_per_s)
        console.paragraph(f"{exported.basis} The plan's own is {exported.planned}: {planned}.")
    for name, text in exported.files.items():
        console.heading(name)
        console.say(text.rstrip("\n"))
    console.heading("Command")
    console.say(exported.command)
    for heading, sentences in (("Not expressed", exported.not_expressed), ("To know", exported.remarks)):
        if sentences:
            console.heading(heading)
        for sentence in sentences:
            console.paragraph(f"- {sentence}")
    console.say()


def _predicted(tokens_per_s: float | None) -> str:
    return "not predicted" if tokens_per_s is None else f"{speed(tokens_per_s)} tokens/s predicted"
