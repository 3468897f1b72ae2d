"""Requests made from a plan and prompts, and the engines that `validate` runs them on."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, overload

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


@dataclass(frozen=True, slots=True)
class EncodedPrompts(Sequence[EncodedPrompt]):
    """Prompts as id and token ids, tokenised on demand: a large file is never whole in memory.

    Access raises ValueError for a prompt without tokens, and for one that `model` cannot take.
    """

    prompts: Sequence[Prompt]
    tokenizer: Tokenizer
    model: str
    spec: ModelSpec

    @classmethod
    def of(cls, prompts: Sequence[Prompt], *, model: str) -> Self:
        """Prompts tokenised for the model in a directory, or for a bundled one."""
        directory = model_directory(model)
        return cls(prompts, Tokenizer(directory), model, ModelSpec.from_directory(directory))

    def __len__(self) -> int:
        return len(self.prompts)

    @overload
    def __getitem__(self, index: int) -> EncodedPrompt: ...

    @overload
    def __getitem__(self, index: slice) -> list[EncodedPrompt]: ...

    def __getitem__(self, index: int | slice) -> EncodedPrompt | list[EncodedPrompt]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        prompt, most = self.prompts[index], self.spec.max_position
        tokens = self.tokenizer.encode(prompt.text, most=most)
        if not tokens:
            raise ValueError(f"prompt {prompt.prompt_id} is empty: it has no tokens")
        if len(tokens) > surely_over(most):
            raise ValueError(
                f"prompt {prompt.prompt_id} has over {surely_over(most)} tokens; "
                f"that is more than the {most} positions of {self.model}"
            )
        if max(tokens) >= self.spec.vocab_size:
            raise ValueError(
                f"prompt {prompt.prompt_id}: the tokenizer.json of {self.model} gives token {max(tokens)}; "
                f"its config.json has a vocab_size of {self.spec.vocab_size}"
            )
        return prompt.prompt_id, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks(Sequence[Task]):
    """Requests for every prompt, made on demand. max_context: tokens of the longest one with its output."""

    prompts: Sequence[EncodedPrompt]
    max_new_tokens: int
    eos_token_ids: frozenset[int]
    max_context: int

    def __len__(self) -> int:
        return len(self.prompts)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        prompt_id, tokens = self.prompts[index]
        request = Request(prompt=tokens, max_new_tokens=self.max_new_tokens, eos_token_ids=self.eos_token_ids)
        return Task(prompt_id=prompt_id, request=request)


def make_tasks(plan: Plan, candidates: Iterable[Candidate], prompts: Sequence[Prompt], *, max_new_tokens: int) -> Tasks:
    """Requests for every prompt. ValueError for one that does not fit the models' context with its output and tree."""
    encoded = EncodedPrompts.of(prompts, model=plan.target.model)
    policies = [candidate.build() for candidate in candidates]
    limit = ContextLimit.of_model(encoded.spec, policies, model=plan.target.model)
    longest = 0
    for prompt_id, tokens in encoded:
        limit.check(len(tokens), max_new_tokens, prompt=f"prompt {prompt_id}")
        longest = max(longest, len(tokens))
    return Tasks(
        prompts=encoded,
        max_new_tokens=max_new_tokens,
        eos_token_ids=frozenset(encoded.spec.eos_token_ids),
        max_context=longest + max_new_tokens,
    )


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
