"""Inputs of stages in several forms: prompts as texts or a file, a plan as an object or a file; and one check."""

from collections.abc import Sequence
from pathlib import Path

from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.prompts import Prompt, read_prompts, spread
from swiftspec.artifacts.workload import Workload
from swiftspec.engine.checks import ContextLimit
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import inflated_spec
from swiftspec.models.published import known_model, model_names
from swiftspec.models.spec import is_model_directory

Prompts = Sequence[str] | Path | str


def read_plan(planned: Planned | Path | str) -> Planned:
    """A plan, loaded if it is given as a file."""
    return planned if isinstance(planned, Planned) else Planned.load(planned)


def read_priced(planned: Planned | Path | str) -> Planned:
    """A plan with the profile that its simulations take (see `with_routed_profile`)."""
    from swiftspec.planner.recorded_routing import with_routed_profile

    return with_routed_profile(read_plan(planned))


def read_texts(prompts: Prompts, limit: int | None) -> Sequence[Prompt]:
    """Prompts from a file, or texts identified by their number; at most `limit`, spread evenly."""
    if isinstance(prompts, Path | str):
        return spread(read_prompts(Path(prompts)), limit)
    return spread([Prompt(prompt_id=str(number), text=text) for number, text in enumerate(prompts)], limit)


def check_context(target: ModelRef, candidates: Sequence[Candidate], workload: Workload) -> None:
    """ValueError if a request is longer than the target's context, where the target's shape is known here."""
    if target.model in model_names():
        spec = known_model(target.model).spec
    elif is_model_directory(target.model):
        spec = inflated_spec(target)
    else:
        return
    limit = ContextLimit.of_model(spec, [each.build() for each in candidates], model=target.model)
    for number, asked in enumerate(workload.requests):
        limit.check(asked.prompt_tokens, asked.output_tokens, prompt=f"requests[{number}]")
