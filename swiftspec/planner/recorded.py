"""Plans for the machine that a profile was measured on."""

from dataclasses import replace
from pathlib import Path

from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.routed_profile import routed_profile
from swiftspec.engines.words import Method
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec, is_model_directory, model_directory
from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.deployment import with_draft_server
from swiftspec.planner.fleet.replica import with_workload
from swiftspec.planner.load import Load
from swiftspec.planner.plan import Hardware, make_plan
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.under_load.measured_engine import MeasuredEngine
from swiftspec.progress import Progress
from swiftspec.timing.latency import Provenance


def plan_recorded(
    profile: Profile,
    trace: AcceptanceTrace,
    *,
    drafts: Profile | None = None,
    num_devices: int,
    options: SearchOptions,
    progress: Progress,
    profile_path: Path | None = None,
    trace_path: Path | None = None,
) -> Planned:
    """The plan for one pair of models from its profile and its trace; with their paths, if they are already files.

    Of a sparse target, verifications take as long as those of the trace's texts (see `routed_profile`); the plan comes
    with the profile as it was measured. Of a profile of a server, what its engine can run is searched, under its rules.

    drafts: the profile of devices that a draft has to itself beside that server.
    """
    options.check(num_devices=num_devices + (drafts.num_devices if drafts else 0))
    if options.load is not None:
        _check_context(options.load, profile.target)
    serving, degrees = MeasuredEngine.of(profile), AllowedDegrees(sizes=options.degrees)
    if serving is not None:
        options = replace(options, load=options.load and options.load.under(serving))
        drafter = serving.drafts.method
        degrees = replace(
            degrees, engine=serving.engine, drafter=drafter, draft_server=drafts is not None, chains_only=True
        )
    if drafts is not None:
        if serving is None:
            raise FieldError("draft_device", drafts.device, "it needs a profile of an engine's server")
        round_s = serving.round_s(Method.DRAFT_SERVER)
        profile = with_draft_server(profile, drafts, round_s=round_s, provenance=Provenance.MEASURED)
        profile_path = None
    plan = make_plan(
        routed_profile(profile, trace),
        trace,
        Hardware(
            num_devices=num_devices,
            draft_devices=drafts.num_devices if drafts else 0,
            degrees=degrees,
            engine=serving.engine.name if serving else None,
        ),
        options,
        progress=progress,
    )
    planned = Planned(plan=plan, profile=profile, trace=trace, profile_path=profile_path, trace_path=trace_path)
    return with_workload(planned, options.load)


def _check_context(load: Load, model: ModelRef) -> None:
    """ValueError for a request that does not fit into the target's context, where its files are there to tell."""
    if is_model_directory(model.model):
        spec = ModelSpec.from_directory(model_directory(model.model))
        if model.inflate is not None:
            spec = Inflation.parse(model.inflate).inflated(spec)
        load.check_context(spec.max_position, model.model)
