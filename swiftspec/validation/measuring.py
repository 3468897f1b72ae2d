"""Measurement of a plan's policies on this machine, and the report of predicted and measured."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

from swiftspec.artifacts.metrics import Figures
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.prompts import Prompt
from swiftspec.artifacts.report import Drift, Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.engine.checks import check_devices
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.tasks import Tasks, generate_one, make_tasks, open_engines, warm_up
from swiftspec.files.document import Origin
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.progress import Stages, silent
from swiftspec.timing.step_key import RowFactors, StepTable, factor_at
from swiftspec.validation.validator import Measurement, make_report, plain_outputs

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation, Launcher
    from swiftspec.profiler.drift import DriftProbe

_LEAST_PROMPTS = 4
_SWEEP_EVERY = 24  # requests; a sweep takes as long as two or three


def drift_probe(made: Plan, candidates: Sequence[Candidate], engines: Mapping[str, "Launcher"]) -> "DriftProbe":
    """Drift probe of the engines that the candidates run on, each once."""
    from swiftspec.profiler.drift import DriftProbe
    from swiftspec.profiler.prompts import prompts_for

    spec = ModelSpec.from_directory(model_directory(made.target.model))
    held = {id(engine): (engine, c.groups, c.ranks) for c in candidates for engine in [engines[c.policy]]}
    return DriftProbe(list(held.values()), prompt=prompts_for(made.target, spec))


def retimed_figures(
    made: Plan,
    candidates: Sequence[Candidate],
    *,
    profile: Profile,
    trace: AcceptanceTrace,
    factors: Mapping[StepTable, RowFactors],
    stages: Stages = silent,
) -> dict[str, Figures]:
    """The plan's prediction by policy, repeated with the latencies during the measurement."""
    from swiftspec.costmodel.routed_profile import routed_profile
    from swiftspec.planner.search.evaluation import Budget, Evaluator
    from swiftspec.planner.search.option import Option

    most = max(made.max_new_tokens, max(len(prompt.target_tokens) for prompt in trace.prompts))
    budget = Budget(prompt_indices=tuple(range(len(trace.prompts))), max_new_tokens=most, seeds=(0,), explain=True)
    options = [Option(policy=c.build(), groups=c.groups, ranks=c.ranks) for c in candidates]
    with stages("re-time") as progress:
        total = len(options)
        priced = routed_profile(profile.retimed(factors), trace)
        outcomes = []
        for outcome in Evaluator(priced, trace, num_jobs=-1).map((option, budget) for option in options):
            outcomes.append(outcome)
            progress(len(outcomes), total, "simulating again")
    return {outcome.option.policy.name: outcome.metrics.figures for outcome in outcomes if outcome.metrics is not None}


def measured_text(
    trace: AcceptanceTrace,
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    outputs: Sequence[tuple[int, ...]],
    *,
    stages: Stages = silent,
) -> AcceptanceTrace:
    """A trace of the measured texts, prompts (id, token ids) with their outputs, by the models of another trace."""
    from swiftspec.devices.local import num_devices_here
    from swiftspec.profiler.acceptance import record_trace

    with stages("re-trace") as progress:
        return record_trace(
            target=trace.target,
            draft=trace.draft,
            prompts=prompts,
            sampling=trace.sampling,
            outputs=outputs,
            max_new_tokens=max(map(len, outputs)),
            num_candidates=trace.prompts[0].draft.num_candidates,
            num_threads=num_devices_here("cpu"),
            progress=progress,
        )


def measure_plan(
    made: Plan,
    *,
    plan_sha256: str,
    candidates: Sequence[Candidate],
    source: str,
    prompts: Sequence[Prompt],
    repeats: int,
    max_new_tokens: int | None = None,
    basis: tuple[Profile, AcceptanceTrace] | None,
    stages: Stages = silent,
    stop: Callable[[], bool] | None = None,
) -> tuple[Report, bool]:
    """Run some of a plan's candidates, including the chosen one; return the report, and whether Ctrl-C cut it short.

    `source` names the plan in errors. With `basis`, the plan's profile and trace, forwards are timed between requests,
    and predictions are repeated with these latencies and, on CPUs, also with the measured texts. KeyboardInterrupt if
    no repetition was complete.

    `stop` is asked between prompts whether time has run out. The first repetition then ends with the prompts done so
    far, at least four, or one for each of fewer policies; a later, incomplete one does not count.
    """
    check_devices(made, candidates, source=source)
    tasks = make_tasks(made, candidates, prompts, max_new_tokens=max_new_tokens or made.max_new_tokens)
    runs, interrupted, drift = _measure(made, candidates, tasks, repeats, stages, stop or (lambda: False))
    if not runs:
        raise KeyboardInterrupt
    factors = drift.factors(basis[0]) if basis and drift else {}
    measurements = [
        Measurement(
            policy=candidate.policy,
            repeats=tuple(tuple(each.timeline for each in generations) for generations in runs[candidate.policy]),
            outputs=tuple(generation.tokens for generation in runs[candidate.policy][0]),
        )
        for candidate in candidates
    ]
    retimed, retraced = {}, {}
    if basis and not interrupted:
        profile, trace = basis
        if factors:
            retimed = retimed_figures(made, candidates, profile=profile, trace=trace, factors=factors, stages=stages)
        # A trace is recorded on CPU cores, which would take too long for models that need a GPU.
        if trace.source == "recorded" and made.device == "cpu":
            done = tasks[: len(measurements[0].outputs)]
            texts_run = [(task.prompt_id, task.request.prompt) for task in done]
            text = measured_text(trace, texts_run, plain_outputs(measurements), stages=stages)
            retraced = retimed_figures(made, candidates, profile=profile, trace=text, factors=factors, stages=stages)
    report = make_report(
        made,
        plan_sha256=plan_sha256,
        measurements=measurements,
        origin=Origin.here(),
        retimed=retimed,
        retraced=retraced,
        drift=[
            Drift(**table._asdict(), factor=factor_at(found), by_rows=dict(found)) for table, found in factors.items()
        ],
    )
    return report, interrupted


Runs = Mapping[str, Sequence[Sequence["Generation"]]]


def _measure(
    made: Plan,
    candidates: Sequence[Candidate],
    tasks: Tasks,
    repeats: int,
    stages: Stages,
    stop: Callable[[], bool],
) -> tuple[Runs, bool, "DriftProbe | None"]:
    """Complete repetitions by policy, whether Ctrl-C cut them short, and the drift of forwards meanwhile."""
    runs: dict[str, list[list[Generation]]] = defaultdict(list)
    drift = None
    with ExitStack() as stack, stages("validate") as progress:
        total = len(candidates) * (1 + repeats * len(tasks))
        step = count()
        try:
            progress(0, total, "starting processes")
            engines = open_engines(made, candidates, tasks, stack)
            for candidate in candidates:
                progress(next(step), total, f"{candidate.policy}: warming up")
                warm_up(engines[candidate.policy], candidate, tasks[0], made.sampling)
            drift = drift_probe(made, candidates, engines)
            drift.warm_up()
            for repeat in range(1, repeats + 1):

                def generate(candidate: Candidate, number: int, repeat: int = repeat) -> "Generation":
                    task, sampler = tasks[number], Sampler(**made.sampling.of_prompt(number))
                    progress(next(step), total, f"{candidate.policy}: prompt {task.prompt_id}, repetition {repeat}")
                    return generate_one(engines[candidate.policy], candidate, task, sampler)

                done = _repetition(candidates, len(tasks), generate, drift.sweep, stop)
                if repeat > 1 and min(map(len, done.values())) < min(len(first) for first, *_ in runs.values()):
                    break
                for policy, generations in done.items():
                    runs[policy].append(generations)
                if stop():
                    break
        except KeyboardInterrupt:
            return runs, True, drift
    return runs, False, drift


def _repetition(
    candidates: Sequence[Candidate],
    num_prompts: int,
    generate: Callable[[Candidate, int], "Generation"],
    sweep: Callable[[], None],
    stop: Callable[[], bool],
) -> Mapping[str, list["Generation"]]:
    """Every prompt by every policy, until time runs out.

    A prompt runs through all policies before the next one, and each prompt starts with another policy, so that a
    machine that speeds up or slows down affects all of them alike.
    """
    done: dict[str, list[Generation]] = defaultdict(list)
    for number in range(num_prompts):
        if number >= min(_LEAST_PROMPTS, len(candidates)) and stop():
            break
        if number % max(1, _SWEEP_EVERY // len(candidates)) == 0:
            sweep()
        first = number % len(candidates)
        for candidate in (*candidates[first:], *candidates[:first]):
            done[candidate.policy].append(generate(candidate, number))
    return done
