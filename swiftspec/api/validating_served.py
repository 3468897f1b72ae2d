"""Validation of a plan on the engine that it was made for, whose servers this machine starts."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from swiftspec.api.inputs import Prompts, read_priced
from swiftspec.api.load_testing import send
from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.artifacts.load_report import LoadReport, PolicyLoad, PredictedLoads
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.costmodel.steps import StepWork
from swiftspec.engines.words import Method
from swiftspec.errors import FieldError
from swiftspec.export import export_plan
from swiftspec.export.nearest import model_argument
from swiftspec.external.engine import EngineHere
from swiftspec.files.document import Origin
from swiftspec.planner.under_load.measured_engine import MeasuredEngine
from swiftspec.profiler.served.core_pace import watched
from swiftspec.profiler.served.engine_profile import probed_server
from swiftspec.profiler.served.probes import Drafting, Probe, ProbedServer
from swiftspec.progress import Stages, silent
from swiftspec.validation.served import DraftCounts, ServedPrediction

_PROBED, _PROMPT, _STEPS = 4, 64, 16  # requests at once at most, tokens of their prompts, and steps of a look


def validate_served(
    planned: Planned | Path | str,
    workload: Workload | Path | str,
    prompts: Prompts,
    *,
    here: EngineHere,
    policies: Sequence[str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    freeze: Path | None = None,
    stages: Stages = silent,
) -> LoadReport:
    """Start the engine of a plan with each policy, send the same load to each, and compare.

    planned: a plan on the profile of a server. workload, prompts, seed, limit: as of `validate_load`.
    here: the engine on this machine.
    policies: all of the plan's that the engine has if not given; the chosen one is always included.
    freeze: file for the predictions, which are written before the first request is sent.

    ValueError: if the plan is of no server, a server does not start, or no request ends well.
    """
    planned = read_priced(planned)
    served = planned.profile.served
    if served is None:
        raise FieldError("plan", "one that is not of a server's profile", "expected one on a profile of --engine")
    workload = workload if isinstance(workload, Workload) else Workload.load(Path(workload))
    runs = [
        ServedPrediction(planned=planned, candidate=each, workload=workload, seed=seed)
        for each in planned.plan.select(policies)
    ]
    with stages("simulate") as progress:
        predicted = {}
        for done, run in enumerate(runs):
            progress(done, len(runs), run.candidate.policy)
            predicted[run.candidate.policy] = run.metrics()
    frozen = PredictedLoads(
        origin=Origin.here(),
        plan_sha256=sha256(planned.plan.to_bytes()).hexdigest(),
        workload_sha256=sha256(workload.to_bytes()).hexdigest(),
        policies=predicted,
    )
    if freeze is not None:
        frozen.save(freeze)
    loads: list[PolicyLoad] = []
    together = [runs] if here.device == "cpu" else [[run] for run in runs]  # on GPUs one server fits at a time
    with tempfile.TemporaryDirectory() as folder:
        for group in together:
            with ExitStack() as stack:
                servers = [
                    stack.enter_context(server_of(run, here, folder=Path(folder), stages=stages)) for run in group
                ]
                for run, server in zip(group, servers, strict=True):
                    before = predicted[run.candidate.policy]
                    loads.append(compared(run, server, prompts, before, limit=limit, stages=stages))
    return LoadReport(
        origin=Origin.here(),
        plan_sha256=frozen.plan_sha256,
        workload_sha256=frozen.workload_sha256,
        predictions_sha256=sha256(frozen.to_bytes()).hexdigest(),
        workload=str(workload.arrivals),
        num_requests=len(workload.requests),
        max_running=served.requests,
        policies=tuple(loads),
    )


@contextmanager
def server_of(run: ServedPrediction, here: EngineHere, *, folder: Path, stages: Stages) -> Iterator[ProbedServer]:
    """The server of a policy, and its draft server if it asks one. folder: for their logs and files."""
    name, length = run.candidate.policy, run.candidate.build().target_rows - 1
    plan = run.planned.plan.model_copy(update={"chosen": run.candidate, "alternatives": ()})
    exported = export_plan(plan, here.engine, address=f"ipc://{folder / name}.draft")
    target, log = model_argument(plan.target.model, here.engine), folder / f"{name}.log"
    with here.server(exported, target=target, log=log, stage=f"start {name}", stages=stages) as server:
        drafting = Drafting.DRAFT if run.levels else Drafting.LOOKUP if length else Drafting.PLAIN
        yield probed_server(server.url, drafting, lengths=lambda _: length, cores=here.cores(server))


def compared(
    run: ServedPrediction,
    server: ProbedServer,
    prompts: Prompts,
    predicted: LoadMetrics,
    *,
    limit: int | None = None,
    stages: Stages = silent,
) -> PolicyLoad:
    """One policy, sent its load. Its cores' pace tells how fast steps are then, or a look before and one after it."""
    engine = MeasuredEngine.of(run.planned.profile)
    assert engine is not None, "its profile is of a server"
    usual_s = engine.served.pace_s if server.cores else None
    sequences = min(run.workload.arrivals.num_clients or _PROBED, _PROBED)
    factors = [] if usual_s else [_time_factor(engine, server, sequences)]
    before = server.client.reading()
    with watched(server.cores) as pace:
        began_s = time.perf_counter()
        _, sent = send(server.client.url, run.workload, prompts, api_key="", seed=run.seed, limit=limit, stages=stages)
        pace_s = pace(began_s, time.perf_counter())
    counted = server.client.reading().since(before)
    factors.append(pace_s / usual_s if usual_s else _time_factor(engine, server, sequences))
    accepted = counted.count("spec_decode_num_accepted_tokens")
    counts = DraftCounts(
        steps=sum(answer.num_tokens - 1 for answer in sent.answers) - accepted,
        drafts=counted.count("spec_decode_num_drafts"),
        drafted=counted.count("spec_decode_num_draft_tokens"),
        by_position=counted.by_position,
    )
    factor = fmean(factors)
    return PolicyLoad(
        policy=run.candidate.policy,
        candidate=run.candidate.describe(),
        predicted=predicted,
        measured=sent.metrics,
        retimed=run.metrics(time_factor=factor),
        retraced=run.metrics(time_factor=factor, counts=counts if run.candidate.build().target_rows > 1 else None),
        late_s=sent.late_s,
        mean_batch=None,
        time_factor=factor,
        survival=run.survival(),
        measured_survival=counts.survival,
    )


def _time_factor(engine: MeasuredEngine, server: ProbedServer, sequences: int) -> float:
    """Seconds of the server's steps now, over those of the profile; 1 where they cannot be seen."""
    measured = server.decoding(Probe(sequences, _PROMPT, _STEPS), seed=0)
    if measured is None:
        return 1.0
    work = measured.work
    levels, context = round(work.levels), work.cache_tokens / work.sequences
    method = {Drafting.LOOKUP: Method.PROMPT_LOOKUP, Drafting.DRAFT: engine.drafts.method}.get(server.drafting)
    profiled_s = engine.round_s(method) + engine.step_s(
        StepWork(sequences=work.sequences, rows_each=1 + levels, cache_tokens=round(work.cache_tokens))
    )
    if server.drafting is Drafting.DRAFT:
        profiled_s += engine.draft_s([1] * levels)(work.sequences, context)
    return measured.seconds / profiled_s
