"""`plan --report`: a plan as one HTML file, with ten simulated rounds of its choice."""

from pathlib import Path

from swiftspec.artifacts.planned import Planned
from swiftspec.cli import console
from swiftspec.cli.outputs import check_outputs, saved, write_json
from swiftspec.files.writing import write_output

__all__ = ["report", "write_page"]


def report(*, plan: Path, out: Path | None, json_path: Path | None = None) -> None:
    """Write the report of a saved plan, and print where it is. ValueError without a place for it."""
    if out is None:
        raise ValueError(f"--report is missing; --plan {plan} writes the report of that plan")
    check_outputs(inputs={"--plan": plan}, report=out, json=json_path)
    write_page(out, Planned.load(plan))
    console.say(saved(out))
    write_json(json_path, {"plan": str(plan), "report": str(out)})


def write_page(path: Path, planned: Planned) -> None:
    """Write the report of a plan."""
    from swiftspec.planner.recorded_routing import with_routed_profile
    from swiftspec.reports.html import render
    from swiftspec.simulator.typical import typical_timeline

    planned = with_routed_profile(planned)
    page = render(planned.plan, profile=planned.profile, timeline=typical_timeline(planned))
    write_output(path, page.encode())
