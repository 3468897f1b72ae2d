"""Requests made from a plan and prompts, and the engines that `validate` runs them on."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.prompts import Prompt
from swiftspec.artifacts.trace import GREEDY, SamplingParams
from swiftspec.engine.checks import ContextLimit
from swiftspec.engine.requests import Task
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import Tokenizer, surely_over
from swiftspec.policies import Layout, Request

if TYPE_CHECKING:
    from swiftspec.engine.launcher import Generation, Launcher
    from swiftspec.engine.model.sampling.sampler import Sampler

_WARM_UP_TOKENS = 16
EncodedPrompt = tuple[str, tuple[int, ...]]
_Source = TypeVar("_Source")
_Made = TypeVar("_Made")


class OnDemand(Sequence[_Made], Generic[_Source, _Made]):
    """Items made of another sequence's when they are asked for: a large file is never whole in memory."""

    def __init__(self, sources: Sequence[_Source], make: Callable[[_Source], _Made]) -> None:
        self._sources, self._make = sources, make

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, index: int) -> _Made: ...

    @overload
    def __getitem__(self, index: slice) -> list[_Made]: ...

    def __getitem__(self, index: int | slice) -> _Made | list[_Made]:
        if isinstance(index, slice):
            return list(map(self._make, self._sources[index]))
        return self._make(self._sources[index])


def encoded_prompts(prompts: Sequence[Prompt], *, model: str) -> Sequence[EncodedPrompt]:
    """Prompts as id and token ids, of the model in a directory, or of a bundled one.

    Access raises ValueError for a prompt without tokens, and for one that the model cannot take.
    """
    directory = model_directory(model)
    tokenizer, spec = Tokenizer(directory), ModelSpec.from_directory(directory)

    def encoded(prompt: Prompt) -> EncodedPrompt:
        most = spec.max_position
        tokens = tokenizer.encode(prompt.text, most=most)
        if not tokens:
            raise ValueError(f"prompt {prompt.prompt_id} is empty: it has no tokens")
        if len(tokens) > surely_over(most):
            raise ValueError(
                f"prompt {prompt.prompt_id} has over {surely_over(most)} tokens; "
                f"that is more than the {most} positions of {model}"
            )
        if max(tokens) >= spec.vocab_size:
            raise ValueError(
                f"prompt {prompt.prompt_id}: the tokenizer.json of {model} gives token {max(tokens)}; "
                f"its config.json has a vocab_size of {spec.vocab_size}"
            )
        return prompt.prompt_id, tokens

    return OnDemand(prompts, encoded)


class Tasks(OnDemand[EncodedPrompt, Task]):
    """Requests for every prompt. max_context: tokens of the longest one with its output."""

    max_context: int


def make_tasks(plan: Plan, candidates: Iterable[Candidate], prompts: Sequence[Prompt], *, max_new_tokens: int) -> Tasks:
    """Requests for every prompt. ValueError for one that does not fit the models' context with its output and tree."""
    encoded = encoded_prompts(prompts, model=plan.target.model)
    spec = ModelSpec.from_directory(model_directory(plan.target.model))
    limit = ContextLimit.of_model(spec, [each.build() for each in candidates], model=plan.target.model)
    eos_token_ids = frozenset(spec.eos_token_ids)

    def task(prompt: EncodedPrompt) -> Task:
        prompt_id, tokens = prompt
        request = Request(prompt=tokens, max_new_tokens=max_new_tokens, eos_token_ids=eos_token_ids)
        return Task(prompt_id=prompt_id, request=request)

    tasks, longest = Tasks(encoded, task), 0
    for prompt_id, tokens in encoded:
        limit.check(len(tokens), max_new_tokens, prompt=f"prompt {prompt_id}")
        longest = max(longest, len(tokens))
    tasks.max_context = longest + max_new_tokens
    return tasks


def open_engines(plan: Plan, candidates: Sequence[Candidate], tasks: Tasks, stack: ExitStack) -> dict[str, "Launcher"]:
    """An engine for every policy, with room for the longest task; `stack` closes them.

    Policies on the same devices share one: a co-located engine also decodes without its draft.
    """
    from swiftspec.engine.launcher import Launcher

    engines: dict[str, Launcher] = {}
    for group in _sharing(candidates):
        layouts = {candidate.build().layout for candidate in group}
        layout = next(layout for layout in reversed(Layout) if layout in layouts)
        engine = Launcher.for_candidate(plan, group[0], layout=layout, max_context=tasks.max_context)
        stack.enter_context(engine)
        engines |= {candidate.policy: engine for candidate in group}
    return engines


def warm_up(engine: "Launcher", candidate: Candidate, task: Task, sampling: SamplingParams = GREEDY) -> None:
    """Run a candidate once for the extra costs of a first time, such as allocating buffers."""
    from swiftspec.engine.model.sampling.sampler import Sampler

    tokens = min(_WARM_UP_TOKENS, task.request.max_new_tokens)
    short = replace(task, request=replace(task.request, max_new_tokens=tokens))
    generate_one(engine, candidate, short, Sampler(**sampling.of_prompt(0)))


def generate_one(engine: "Launcher", candidate: Candidate, task: Task, sampler: "Sampler") -> "Generation":
    """One whole request. KeyboardInterrupt if Ctrl-C interrupted it."""
    generation = engine.generate(candidate.build(), task.request, request_id=task.prompt_id, sampler=sampler)
    if generation.interrupted:
        raise KeyboardInterrupt
    return generation


def _sharing(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Candidates grouped by the devices they use, and how."""
    shared: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in candidates:
        groups, ranks = candidate.groups.items(), candidate.ranks.items()
        key = (candidate.build().target_groups, *sorted(groups), *sorted(ranks))
        shared.setdefault(key, []).append(candidate)
    return list(shared.values())
