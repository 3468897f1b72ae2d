"""The stages that predict: plan, simulate, alone and under load, and kinds of drafts side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.api.inputs import check_context, read_priced
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.kinds import KindComparison
from swiftspec.artifacts.load_metrics import SimulatedLoad
from swiftspec.artifacts.load_options import LoadOptions, usual_max_running
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned, candidate_of, searching
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.under_load import UnderLoad, workload_sha256
from swiftspec.artifacts.workload import Workload
from swiftspec.errors import FieldError
from swiftspec.planner.load import Load
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.effects import Role
from swiftspec.progress import Stages, silent
from swiftspec.timing.timeline import Timeline

if TYPE_CHECKING:
    from swiftspec.planner.deployment import Deployment

_ANY = SearchOptions()


def plan(
    target: str | None = None,
    draft: str | None = None,
    *,
    deployment: "Deployment | None" = None,
    profile: Profile | None = None,
    draft_profile: Profile | None = None,
    trace: AcceptanceTrace | Path | None = None,
    dataset: str | None = None,
    acceptance: str | None = None,
    options: SearchOptions = _ANY,
    workload: Workload | Path | str | None = None,
    stages: Stages = silent,
) -> Planned:
    """Choose the decoding policy, its tree shape and the split of devices, and predict the speed.

    There are two ways to call it. For devices that are not in this machine, name both models and give a `deployment`:
    latencies are then composed from published figures. For this machine, give a `profile` and a `trace` measured here.

    Parameters
    ----------
    target, draft : str, optional
        With `deployment`: names, such as `llama-3-70b`, or directories with a config.json.
    deployment : Deployment, optional
        The devices to plan for; they need not be in this machine.
    profile : Profile, optional
        Without `deployment`: result of `swiftspec.profile`.
    draft_profile : Profile, optional
        With the profile of another engine's server: that of devices beside it, which a draft server has to itself.
    trace : AcceptanceTrace or Path, optional
        Without `deployment`: result of `swiftspec.trace`. With it: file of a trace that acceptance is taken from.
    dataset : str, optional
        With `deployment`: take the published acceptance of this data set or class of text, such as `code`.
    acceptance : str, optional
        With `deployment`: acceptance rates, one as `0.75`, or by position as `0.8,0.7,0.6`; or tokens per round, of
        chains as `2.9@5`, of trees as `3.4@3-4-8`.
    options : SearchOptions
        The goal, the options to choose from, and where simulations run.
    workload : Workload, or path, optional
        Plan for these requests instead of one at a time, and maximise goodput: requests per second within the limits of
        the goal and of the workload's classes; without any, the lowest mean end-to-end time is chosen. With
        `options.fleet`, the plan is the replica that keeps the limits on the fewest devices, for 95 percent of the
        requests unless the goal's percentile says otherwise.
    stages : Stages
        Receives progress reports.

    Returns
    -------
    Planned
        The plan with its profile and trace.

    Raises
    ------
    ValueError
        If a name is unknown, the models do not fit each other or the devices, or an argument is missing or wrong.

    Examples
    --------
    >>> h800 = swiftspec.Deployment(device="h800", num_devices=2, quant="int4")
    >>> planned = swiftspec.plan("llama-3-8b", "llama-3.2-1b", deployment=h800)
    >>> print(planned)  # the policy, its shape and split, and tokens/s
    """
    if workload is not None:
        scheduler = LoadOptions()
        if options.fleet is not None:
            scheduler = LoadOptions(max_running=usual_max_running(deployment.device if deployment else "cpu"))
        options = replace(options, load=Load.read(workload, options=scheduler))
    if deployment is None:
        if profile is None or not isinstance(trace, AcceptanceTrace):
            raise ValueError("deployment is missing; without it a plan needs a profile and a trace of this machine")
        from swiftspec.planner.recorded import plan_recorded

        with stages("plan") as progress:
            return plan_recorded(
                profile,
                trace,
                drafts=draft_profile,
                num_devices=profile.num_devices,
                options=options,
                progress=progress,
            )
    if target is None or draft is None:
        raise ValueError("target and draft are missing; a deployment needs the names of both")
    if isinstance(trace, AcceptanceTrace):
        raise ValueError("trace is an object; with a deployment, expected the file of a trace")
    from swiftspec.acceptance.given import GivenAcceptance
    from swiftspec.planner.for_device import plan_for

    given = None if acceptance is None else GivenAcceptance.parse(acceptance, field="acceptance")
    with stages("plan") as progress:
        return plan_for(
            deployment,
            target=target,
            draft=draft,
            trace=trace,
            dataset=dataset,
            acceptance=given,
            options=options,
            progress=progress,
        )


def simulate(
    planned: Planned | Path | str,
    *,
    policy: str | None = None,
    split: tuple[int, ...] | None = None,
    earlier_outputs: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
) -> list[Timeline]:
    """Replay a plan on its traced prompts in simulated time.

    Parameters
    ----------
    planned : Planned, or path
        A plan or its file.
    policy : str, optional
        One of the plan's alternatives; its choice if not given.
    split : tuple of int, optional
        Devices of the target and of the draft, such as `(5, 3)`; one number for a policy that has a single group. The
        plan's if not given.
    earlier_outputs : int, optional
        Most outputs of earlier prompts that a suffix-decoding policy searches, too: the prompts are requests of one
        server. The plan's if not given, which is none.
    max_new_tokens : int, optional
        Output tokens per prompt; the plan's if not given.
    seed : int
        The same seed gives the same timelines.

    Returns
    -------
    list of Timeline
        One for every traced prompt; two if forwards are not known exactly, as on devices that are not in this machine.
        Times are in seconds. `measure` computes figures from them.

    Raises
    ------
    ValueError
        If the plan has no such policy, the policy searches no earlier outputs, the profile has no such devices, or a
        file cannot be read.

    Examples
    --------
    >>> timelines = swiftspec.simulate("plan.json")
    >>> swiftspec.measure(timelines).tpot_s
    0.0...
    """
    planned = read_priced(planned)
    from swiftspec.simulator.driver import simulate as replay
    from swiftspec.simulator.forward_errors import forward_errors

    candidate = searching(candidate_of(planned.plan, policy), earlier_outputs)
    degrees = {role: len(group) for role, group in candidate.groups.items()}
    if split is not None:
        if len(split) != len(degrees):
            roles = " and ".join(degrees)
            raise FieldError("split", split, f"{candidate.policy} needs a number of devices for {roles}")
        degrees = {role: count for role, count in zip(Role, split, strict=False) if role in degrees}
    return replay(
        candidate.build(),
        degrees=degrees,
        ranks=candidate.ranks,
        profile=planned.profile,
        trace=planned.trace,
        prompt_indices=None,
        seed=seed,
        max_new_tokens=max_new_tokens or planned.plan.max_new_tokens,
        errors=forward_errors(planned.profile),
    )


def simulate_load(
    planned: Planned | Path | str,
    workload: Workload | Path | str,
    *,
    policy: str | None = None,
    options: LoadOptions | None = None,
    earlier_outputs: int | None = None,
    engine: str | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    timelines: bool = False,
    stages: Stages = silent,
) -> SimulatedLoad:
    """Serve a workload by a plan in simulated time.

    Texts are the plan's traced ones, chosen at random for requests that name no prompt, and cut or continued to the
    workload's lengths: load and acceptance are independent. If the plan was made for this workload, the latency limits
    are those of the plan; otherwise the workload's own.

    policy: one of the plan's alternatives; its choice if not given.
    options: limits of the scheduler; those of a plan that was made for this workload if not given.
    earlier_outputs: most outputs of earlier requests that a suffix-decoding policy searches, too; the plan's if not
    given, which is none.
    engine: engine that serves, with its release: `vllm@0.15`. Of another one than this package's, limits are those of
    its steps, changed by `settings` in its own words, and `options` are not used.
    timelines: whether requests are to have timelines: then events are simulated, where recorded rounds might do.

    ValueError: if the plan has no such policy, the policy searches no earlier outputs, a prompt is not in its trace, a
    request does not fit into the target's context or the cache, or the engine cannot run the policy.
    """
    planned = read_priced(planned)
    path = None if isinstance(workload, Workload) else Path(workload)
    asked = workload if isinstance(workload, Workload) else Workload.load(workload)
    from swiftspec.planner.under_load.measured_engine import MeasuredEngine
    from swiftspec.planner.under_load.predictor import Predictor, serving_of_plan
    from swiftspec.planner.under_load.serving_engine import ServingEngine
    from swiftspec.simulator.setup import Setup

    candidate = searching(candidate_of(planned.plan, policy), earlier_outputs)
    check_context(planned.plan.target, [candidate], asked)
    assumed = planned_load(planned.plan, asked, path)
    serving: ServingEngine | None = MeasuredEngine.of(planned.profile)
    if engine is not None:
        serving = serving_of_plan(planned.plan, candidate, engine=engine, settings=settings or {})
    predictor = Predictor(planned.profile, planned.trace, serving=serving, seed=seed)
    usual = assumed.options_of(candidate.policy) if assumed else LoadOptions()
    options = (options or usual).on(planned.profile.device)
    with stages("simulate") as progress:
        return predictor.serve(
            Setup.of(candidate),
            asked,
            goal=assumed.goal if assumed else Goal(classes=asked.classes),
            options=options,
            replicas=options.replicas,
            timelines=timelines,
            done=lambda count: progress(count, len(asked.requests), "requests"),
        )


def planned_load(plan: Plan, workload: Workload, path: Path | None = None) -> UnderLoad | None:
    """The plan's predictions under load, if they are for this workload."""
    assumed = plan.under_load
    if assumed is None or assumed.workload.sha256 != workload_sha256(workload, path):
        return None
    return assumed


def compare_kinds(
    target: str,
    *,
    deployment: "Deployment",
    drafts: Sequence[str] | Mapping[str, str | None] = (),
    clients: Sequence[int] = (1, 4, 16, 64),
    trace: Path | str | None = None,
    dataset: str | None = None,
    seed: int = 0,
    num_jobs: int = -1,
    price_per_hour: float | None = None,
    stages: Stages = silent,
) -> KindComparison:
    """Lay kinds of drafts side by side on one target, on all devices of a deployment, at several loads.

    None, suffix decoding, draft models on the target's devices and on their own, parallel drafts, heads and block
    drafters, each in the shape that is fastest at the load.

    drafts: as of a plan: names, directories, `pard:NAME`, or heads such as `eagle3`. A mapping gives acceptance rates
    by draft, as `swiftspec.plan` takes them; None is the published one. `suffix` with tokens per round, as `1.8@5`, is
    suffix decoding with that acceptance. Without, the smallest draft model, the same as a parallel draft, and every
    kind of head.
    clients: loads, requests that decode together.
    trace: a recorded one whose text suffix decoding drafts from; a bundled one if not given.
    dataset: acceptance on this data set or class of text.
    num_jobs: processes; 1 stays in this one, -1 starts one per core.
    price_per_hour: of one device, in any currency: a million output tokens are priced.

    ValueError: if a name is unknown, a draft does not fit the target, or the target does not fit on the devices.

    >>> h100 = swiftspec.Deployment(device="h100", num_devices=8, quant="fp8")
    >>> compared = compare_kinds("llama-3.3-70b", deployment=h100)
    >>> kind, point = compared.ranked(clients=16)[0]
    """
    from swiftspec.acceptance.given import GivenAcceptance
    from swiftspec.planner.drafts.compare import compare_kinds as lay_out
    from swiftspec.planner.drafts.named import DraftInput, asked_drafts

    rates = dict(drafts) if isinstance(drafts, Mapping) else dict.fromkeys(drafts)
    asked = [
        DraftInput(draft=name, acceptance=GivenAcceptance.parse(text, field="acceptance") if text else None)
        for name, text in zip_longest(asked_drafts(target, list(rates)), rates.values())
    ]
    with stages("kinds") as progress:
        compared = lay_out(
            deployment,
            target=target,
            drafts=asked,
            clients=clients,
            text=None if trace is None else Path(trace),
            dataset=dataset,
            seed=seed,
            num_jobs=num_jobs,
            price_per_hour=price_per_hour,
            progress=progress,
        )
    return compared.model_copy(update={"host_s": deployment.host_s})
