"""Prompts of requests: lengths of those of a file, and what prompts have in common.

They begin alike where there are system prompts, prompts that are repeated, or conversations that grow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.distributions import MOST_TOKENS
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import MOST_ID_CHARACTERS, PromptSource, WorkloadRequest
from swiftspec.errors import FieldError
from swiftspec.files.document import file_sha256
from swiftspec.files.reading import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """Ids and lengths of the prompts of a file.

    output_tokens: of the outputs that the file holds, as an acceptance trace does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The beginnings that prompts have in common.

    system_prompt_tokens: tokens before each prompt that all requests share, in addition to its own.
    system_prompts: number of different system prompts, which requests have in turn.
    distinct_prompts: different prompts, which are sent in turn, again and again; every one is new if not given.
    turns: requests of a conversation. The prompt of each is the whole text so far, its answers included, and new
        tokens.
    think_time_s: seconds from the end of an answer to the next turn.

    ValueError: if a number is out of range, or a conversation would have the prompts of another one.
    """

    system_prompt_tokens: int = 0
    system_prompts: int = 1
    distinct_prompts: int | None = None
    turns: int = 1
    think_time_s: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("system_prompt_tokens", 0), ("system_prompts", 1), ("distinct_prompts", 1), ("turns", 1)):
            if (value := getattr(self, name)) is not None and not least <= value <= MOST_TOKENS:
                raise FieldError(name, value, f"expected {least} to {MOST_TOKENS}")
        if not 0 <= self.think_time_s <= 1e10:
            raise FieldError("think_time_s", f"{self.think_time_s:g}", "expected 0 or more seconds")
        if self.turns > 1 and self.distinct_prompts is not None:
            raise FieldError(
                "distinct_prompts",
                self.distinct_prompts,
                f"all {self.turns} turns of a conversation have new ones",
            )

    def applied(self, requests: Sequence[WorkloadRequest]) -> Iterator[WorkloadRequest]:
        """Requests as drawn, whose prompts have new tokens only, with what they share.

        Turns of a conversation follow one another, and arrive with it.
        """
        if self.turns > 1:
            return self._conversations(requests)
        return self._prompts(requests)

    def _prompts(self, requests: Sequence[WorkloadRequest]) -> Iterator[WorkloadRequest]:
        for number, request in enumerate(requests):
            prompt = number % (self.distinct_prompts or len(requests))
            own = requests[prompt].prompt_tokens
            repeated = [(f"prompt-{prompt}", own)] if self.distinct_prompts else []
            yield request.model_copy(
                update={
                    "prompt_tokens": self.system_prompt_tokens + own,
                    "shared": (*self._system_prompt(prompt), *repeated),
                }
            )

    def _conversations(self, requests: Sequence[WorkloadRequest]) -> Iterator[WorkloadRequest]:
        tokens = 0
        for number, request in enumerate(requests):
            conversation, turn = divmod(number, self.turns)
            tokens = request.prompt_tokens + (tokens if turn else 0)
            name = f"conversation-{conversation}"
            yield request.model_copy(
                update={
                    "prompt_tokens": self.system_prompt_tokens + tokens,
                    "conversation": name,
                    "shared": (*self._system_prompt(conversation), (name, tokens)),
                    "think_time_s": self.think_time_s if turn else None,
                }
            )
            tokens += request.output_tokens

    def _system_prompt(self, number: int) -> list[tuple[str, int]]:
        if not self.system_prompt_tokens:
            return []
        return [(f"system-{number % self.system_prompts}", self.system_prompt_tokens)]
