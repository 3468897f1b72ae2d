"""The stages that compare predictions with measurements: validate and compare."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from swiftspec.api.inputs import Prompts, read_plan, read_texts
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.report import Report
from swiftspec.progress import Stages, silent, time_limit

__all__ = ["validate"]


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
    """Run a plan's policies on this machine, and compare measured with predicted speeds.

    Parameters
    ----------
    planned : Planned, or path
        A plan or its file.
    prompts : sequence of str, or path
        Texts, or a file of JSON lines with a field `prompt`. They should not be the traced ones.
    policies : sequence of str, optional
        Policies to run; the chosen one is always included. All of the plan's if not given.
    repeats : int
        How often each prompt is run with each policy; speeds are medians over the repetitions.
    limit : int, optional
        Use this many prompts, spread evenly over those given. By default all, or of slow models what ten minutes allow.
    max_new_tokens : int, optional
        Output tokens per prompt; the plan's if not given.
    stages : Stages
        Receives progress reports.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        If the plan is for another machine, a policy is not in it, or a prompt does not fit the context.
    KeyboardInterrupt
        If Ctrl-C ended it early.
    swiftspec.errors.EngineError
        If a process of a target died.

    Examples
    --------
    >>> report = swiftspec.validate("plan.json", ["def add(a, b):"], policies=["autoregressive"], max_new_tokens=16)
    >>> report.regret >= 0  # how much faster the best policy was than the chosen one, as a fraction
    True
    """
    planned = read_plan(planned)
    from swiftspec.validation.measuring import measure_plan

    report, interrupted = measure_plan(
        planned.plan,
        plan_sha256=sha256(planned.plan.to_bytes()).hexdigest(),
        candidates=planned.plan.select(policies),
        source="plan",
        prompts=read_texts(prompts, limit),
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        basis=(planned.profile, planned.trace),
        stages=stages,
        stop=time_limit() if limit is None else None,
    )
    if interrupted:
        raise KeyboardInterrupt
    return report
