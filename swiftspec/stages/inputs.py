"""Inputs of stages in several forms: prompts as texts or a file, a plan as an object or a file."""

from collections.abc import Sequence
from pathlib import Path

from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.prompts import Prompt, read_prompts, spread

__all__ = ["Prompts", "read_plan", "read_texts"]

Prompts = Sequence[str] | Path | str


def read_plan(planned: Planned | Path | str) -> Planned:
    """A plan, loaded if it is given as a file."""
    return planned if isinstance(planned, Planned) else Planned.load(planned)


def read_texts(prompts: Prompts, limit: int | None) -> Sequence[Prompt]:
    """Prompts from a file, or texts identified by their number; at most `limit`, spread evenly."""
    if isinstance(prompts, Path | str):
        return spread(read_prompts(Path(prompts)), limit)
    return spread([Prompt(prompt_id=str(number), text=text) for number, text in enumerate(prompts)], limit)
