"""From a plan and prompts to requests on an engine; what `run` and `validate` share."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.engine.devices import num_devices_here
from swiftspec.plan import Candidate, Plan
from swiftspec.policies import Layout, Request
from swiftspec.prompts import Prompt
from swiftspec.session import check_here
from swiftspec.specs import ModelSpec, model_directory
from swiftspec.tokenizer import Tokenizer

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation, Launcher
    from swiftspec.engine.placement import Site

__all__ = [
    "Task",
    "check_devices",
    "encode",
    "generate_greedily",
    "make_tasks",
    "open_engines",
    "warm_up",
]

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request with the id of its prompt."""

    prompt_id: str
    request: Request


def check_devices(plan: Plan, candidates: Iterable[Candidate], *, source: Path) -> None:
    """ValueError unless the plan is for a machine of this kind, with every device that the candidates use."""
    check_here(plan, source=str(source))
    available = num_devices_here(plan.device)
    for candidate in candidates:
        needed = max(candidate.devices) + 1
        if needed > available:
            num_groups = candidate.build().target_groups + 1
            why = f" in {num_groups} disjoint groups" if candidate.build().layout is Layout.DISAGGREGATED else ""
            raise ValueError(
                f"{source}: {candidate.describe()} needs {needed} devices{why}; this machine offers {available}"
            )


def encode(tokenizer: Tokenizer, prompts: Iterable[Prompt]) -> list[tuple[str, tuple[int, ...]]]:
    """(id, token ids) of every prompt. ValueError for one without tokens."""
    encoded = [(prompt.prompt_id, tokenizer.encode(prompt.text)) for prompt in prompts]
    for prompt_id, tokens in encoded:
        if not tokens:
            raise ValueError(f"prompt {prompt_id} is empty: it has no tokens")
    return encoded


def make_tasks(
    plan: Plan,
    candidates: Iterable[Candidate],
    prompts: Sequence[tuple[str, tuple[int, ...]]],
    *,
    max_new_tokens: int,
) -> list[Task]:
    """Requests for every prompt. ValueError for one that does not fit the models' context with its output and tree."""
    spec = ModelSpec.from_directory(model_directory(plan.target.model))
    tree_rows = max(candidate.build().target_rows for candidate in candidates)
    tasks = []
    for prompt_id, tokens in prompts:
        if len(tokens) + max_new_tokens + tree_rows > spec.max_position:
            raise ValueError(
                f"prompt {prompt_id} has {len(tokens)} tokens; with --max-new-tokens {max_new_tokens} and {tree_rows} "
                f"tree rows that is more than the {spec.max_position} positions of {plan.target.model}"
            )
        request = Request(prompt=tokens, max_new_tokens=max_new_tokens, eos_token_ids=frozenset(spec.eos_token_ids))
        tasks.append(Task(prompt_id=prompt_id, request=request))
    return tasks


def open_engines(
    plan: Plan,
    candidates: Sequence[Candidate],
    tasks: Sequence[Task],
    stack: ExitStack,
    *,
    site: "Site | None" = None,
) -> dict[str, "Launcher"]:
    """An engine for every policy, with room for the longest task, on this machine or `site`; `stack` closes them.

    Policies on the same devices share one: a co-located engine also decodes without its draft.
    """
    from swiftspec.engine.launcher import Launcher

    max_context = max(len(task.request.prompt) + task.request.max_new_tokens for task in tasks)
    engines: dict[str, Launcher] = {}
    for group in _sharing(candidates):
        layouts = {candidate.build().layout for candidate in group}
        layout = next(layout for layout in reversed(Layout) if layout in layouts)
        engine = Launcher.for_candidate(plan, group[0], layout=layout, max_context=max_context, site=site)
        stack.enter_context(engine)
        engines |= {candidate.policy: engine for candidate in group}
    return engines


def warm_up(engine: "Launcher", candidate: Candidate, task: Task) -> None:
    """Let a candidate do what every first time costs extra, such as the allocation of buffers."""
    tokens = min(_WARM_UP_TOKENS, task.request.max_new_tokens)
    generate_greedily(engine, candidate, replace(task, request=replace(task.request, max_new_tokens=tokens)))


def generate_greedily(engine: "Launcher", candidate: Candidate, task: Task) -> "Generation":
    """One whole request. KeyboardInterrupt if Ctrl-C cut it short."""
    from swiftspec.engine.sampling import Sampler

    generation = engine.generate(candidate.build(), task.request, request_id=task.prompt_id, sampler=Sampler())
    if generation.interrupted:
        raise KeyboardInterrupt
    return generation


def _sharing(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Candidates by the devices they use, and how."""
    shared: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in candidates:
        groups, ranks = candidate.groups.items(), candidate.ranks.items()
        key = (candidate.build().target_groups, *sorted(groups), *sorted(ranks))
        shared.setdefault(key, []).append(candidate)
    return list(shared.values())
