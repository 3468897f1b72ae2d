"""Stages as Python functions: profile, trace, plan, simulate, validate, compare. The command line calls them.

Each takes and returns objects; `save` and `load` make files of them. What they need is imported when they are called.
"""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.pair import Pair, resolve_pair
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.prompts import Prompt, read_prompts, spread
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.timeline import Timeline
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.devices.local import num_devices_here
from swiftspec.planner.options import SearchOptions
from swiftspec.progress import Stages, silent

if TYPE_CHECKING:
    from swiftspec.planner.deployment import Deployment

__all__ = ["NUM_CANDIDATES", "compare", "plan", "profile", "resolve", "simulate", "trace", "validate"]

NUM_CANDIDATES = 32  # recorded per position; more than any policy keeps per node
Prompts = Sequence[str] | Path | str
_ANY = SearchOptions()


def resolve(*, target: str, draft: str, inflate: str | None, dtype: str, device: str = "cpu") -> Pair:
    """Both models, found readable and made for each other; `auto` is the faster dtype, which on a CPU is measured.

    Raises
    ------
    ValueError
        One sentence naming field and value.
    """
    if dtype != "auto":
        return resolve_pair(target=target, draft=draft, inflate=inflate, dtype=dtype, device=device)
    pair = resolve_pair(target=target, draft=draft, inflate=inflate, dtype="bfloat16", device=device)
    if device == "cuda":
        return pair
    from swiftspec.profiler.dtype_choice import choose_dtype

    dtype = choose_dtype(model=pair.target.model, inflate=inflate)
    return Pair(
        target=pair.target.model_copy(update={"dtype": dtype}), draft=pair.draft.model_copy(update={"dtype": dtype})
    )


def profile(
    target: str,
    draft: str,
    *,
    inflate: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    num_devices: int | None = None,
    ranks: int = 1,
    stages: Stages = silent,
) -> Profile:
    """Measure the forwards of a pair on this machine's cores or GPUs.

    Parameters
    ----------
    target, draft : str
        Hugging Face directories, or `demo/target` and `demo/draft`.
    inflate : str, optional
        Expand the target to this shape, as `layers=24,hidden=1024`.
    device : str
        `cpu` or `cuda`.
    num_devices : int, optional
        All if not given.
    ranks : int
        On a CPU, measure groups that so many processes divide, too.

    Raises
    ------
    ValueError
        One sentence naming field and value.
    """
    pair = resolve(target=target, draft=draft, inflate=inflate, dtype=dtype, device=device)
    from swiftspec.profiler.steps import measure_profile

    with stages("profile") as progress:
        return measure_profile(
            target=pair.target,
            draft=pair.draft,
            device=device,
            num_devices=num_devices or num_devices_here(device),
            progress=progress,
            ranks=ranks,
        )


def trace(
    target: str,
    draft: str,
    prompts: Prompts,
    *,
    dtype: str = "auto",
    max_new_tokens: int = 128,
    limit: int | None = None,
    stages: Stages = silent,
) -> AcceptanceTrace:
    """Record how the draft ranks the target's own output on some prompts.

    Parameters
    ----------
    prompts : sequence of str, or Path
        Texts, or a file of JSON lines.
    limit : int, optional
        At most so many, spread over the prompts.

    Raises
    ------
    ValueError
        One sentence naming field and value.
    """
    texts = _texts(prompts, limit)
    pair = resolve(target=target, draft=draft, inflate=None, dtype=dtype)
    from swiftspec.engine.tasks import EncodedPrompts
    from swiftspec.profiler.acceptance import record_trace

    with stages("trace") as progress:
        return record_trace(
            target=pair.target,
            draft=pair.draft,
            prompts=EncodedPrompts.of(texts, model=pair.target.model),
            max_new_tokens=max_new_tokens,
            num_candidates=NUM_CANDIDATES,
            num_threads=num_devices_here("cpu"),
            progress=progress,
        )


def plan(
    target: str | None = None,
    draft: str | None = None,
    *,
    deployment: "Deployment | None" = None,
    profile: Profile | None = None,
    trace: AcceptanceTrace | Path | None = None,
    dataset: str | None = None,
    acceptance: str | None = None,
    options: SearchOptions = _ANY,
    stages: Stages = silent,
) -> Planned:
    """Choose policy, tree shape and split, and say what to expect.

    For a deployment elsewhere, of a pair by its names; or for this machine, of the pair in a profile and a trace.

    Parameters
    ----------
    target, draft : str, optional
        Names or directories with a config.json; with `deployment`.
    deployment : Deployment, optional
        The devices to plan for, which need not be here.
    profile, trace : optional
        What was measured here. With `deployment`, a trace's file may say how good the draft is.
    dataset, acceptance : str, optional
        With `deployment`, how good the draft is: on a data set by name, or rates as `0.75` and `0.8,0.7,0.6`.

    Raises
    ------
    ValueError
        One sentence naming field and value.
    """
    if deployment is None:
        if profile is None or not isinstance(trace, AcceptanceTrace):
            raise ValueError("deployment is missing; without it a plan needs a profile and a trace of this machine")
        from swiftspec.planner.recorded import plan_recorded

        with stages("plan") as progress:
            return plan_recorded(profile, trace, num_devices=profile.num_devices, options=options, progress=progress)
    if target is None or draft is None:
        raise ValueError("target and draft are missing; a deployment needs the names of both")
    if isinstance(trace, AcceptanceTrace):
        raise ValueError("trace is an object; with a deployment expected the file of a trace")
    from swiftspec.acceptance import GivenAcceptance
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
    max_new_tokens: int | None = None,
    seed: int = 0,
) -> list[Timeline]:
    """Replay a plan, or one of its alternatives, on every traced prompt in simulated time."""
    planned = _planned(planned)
    candidate = _candidate(planned.plan, policy)
    from swiftspec.simulator.driver import simulate as replay
    from swiftspec.simulator.forward_errors import forward_errors

    return replay(
        candidate.build(),
        degrees={role: len(group) for role, group in candidate.groups.items()},
        ranks=candidate.ranks,
        profile=planned.profile,
        trace=planned.trace,
        prompt_indices=None,
        seed=seed,
        max_new_tokens=max_new_tokens or planned.plan.max_new_tokens,
        errors=forward_errors(planned.profile),
    )


def validate(
    planned: Planned | Path | str,
    prompts: Prompts,
    *,
    policies: Sequence[str] | None = None,
    repeats: int = 1,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    stages: Stages = silent,
) -> Report:
    """Run a plan's policies on this machine, and lay predicted beside measured.

    Parameters
    ----------
    policies : sequence of str, optional
        Which; the chosen one always is. All of the plan's if not given.
    repeats : int
        Repetitions; speeds are their medians.

    Raises
    ------
    ValueError
        One sentence naming field and value.
    KeyboardInterrupt
        If Ctrl-C cut it short.
    """
    planned = _planned(planned)
    from swiftspec.validation.measuring import measure_plan

    report, interrupted = measure_plan(
        planned.plan,
        plan_sha256=sha256(planned.plan.to_bytes()).hexdigest(),
        candidates=chosen_candidates(planned.plan, policies),
        source="plan",
        prompts=_texts(prompts, limit),
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        basis=(planned.profile, planned.trace),
        stages=stages,
    )
    if interrupted:
        raise KeyboardInterrupt
    return report


def compare(
    profile: Profile,
    trace: AcceptanceTrace,
    prompts: Prompts | None = None,
    *,
    options: SearchOptions = _ANY,
    repeats: int = 1,
    limit: int | None = None,
    stages: Stages = silent,
) -> tuple[Planned, Report | None]:
    """Every policy at its best, as predicted and, where there are prompts, as measured."""
    planned = plan(profile=profile, trace=trace, options=replace(options, policy=None), stages=stages)
    if prompts is None:
        return planned, None
    return planned, validate(planned, prompts, repeats=repeats, limit=limit, stages=stages)


def chosen_candidates(plan: Plan, policies: Sequence[str] | None) -> list[Candidate]:
    """The policies named, in the plan's order; the chosen one always, since regret refers to it."""
    names = set(plan.candidates) if policies is None else set(policies)
    if unknown := names - plan.candidates.keys():
        raise ValueError(f"policies has {min(unknown)!r}; the plan has {', '.join(plan.candidates)}")
    return [c for name, c in plan.candidates.items() if name in names or c is plan.chosen]


def _planned(planned: Planned | Path | str) -> Planned:
    return planned if isinstance(planned, Planned) else Planned.load(planned)


def _candidate(plan: Plan, policy: str | None) -> Candidate:
    from swiftspec.artifacts.basis import candidate_of

    return candidate_of(plan, policy)


def _texts(prompts: Prompts, limit: int | None) -> Sequence[Prompt]:
    """From a file, or texts by their number."""
    if isinstance(prompts, Path | str):
        return spread(read_prompts(Path(prompts)), limit)
    return spread([Prompt(prompt_id=str(number), text=text) for number, text in enumerate(prompts)], limit)
