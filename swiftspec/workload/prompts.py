"""Lengths of the prompts of a file, for requests that name the prompt they are to send."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import MOST_ID_CHARACTERS, PromptSource
from swiftspec.files.document import file_sha256
from swiftspec.files.reading import shown

__all__ = ["PromptLengths", "lengths_in_prompts", "lengths_in_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """Ids and lengths of the prompts of a file.

    Parameters
    ----------
    source : PromptSource
    ids : tuple of str
    prompt_tokens : tuple of int
    output_tokens : tuple of int, optional
        Of the outputs that the file holds, as an acceptance trace does.
    """

    source: PromptSource
    ids: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for prompt_id in self.ids:
            if not 1 <= len(prompt_id) <= MOST_ID_CHARACTERS:
                raise ValueError(
                    f"{self.source.file}: id is {shown(prompt_id)}; expected 1 to {MOST_ID_CHARACTERS} characters"
                )


def lengths_in_trace(path: Path) -> PromptLengths:
    """Lengths of the prompts and outputs of an acceptance trace. ValueError naming the file if it cannot be read."""
    prompts = [prompt for prompt in AcceptanceTrace.load(path).prompts if len(prompt.target_tokens)]
    if not prompts:
        raise ValueError(f"{path}: no prompt has an output; expected lengths of outputs")
    return PromptLengths(
        source=_source(path),
        ids=tuple(prompt.prompt_id for prompt in prompts),
        prompt_tokens=tuple(prompt.prompt_length for prompt in prompts),
        output_tokens=tuple(len(prompt.target_tokens) for prompt in prompts),
    )


def lengths_in_prompts(path: Path, *, count_tokens: Callable[[str], int]) -> PromptLengths:
    """Lengths of the prompts of a prompts file, in the tokens of some model. ValueError as for `read_prompts`."""
    prompts = read_prompts(path)
    return PromptLengths(
        source=_source(path),
        ids=tuple(prompt.prompt_id for prompt in prompts),
        prompt_tokens=tuple(max(1, count_tokens(prompt.text)) for prompt in prompts),
    )


def _source(path: Path) -> PromptSource:
    return PromptSource(file=path.name, sha256=file_sha256(path))
